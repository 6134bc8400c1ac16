"""What every figure must say of where it was made: machine, versions, commit, load."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from floe import __version__
from floe.assemble import cpu_count


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; None where not known."""
    return {
        "cpu": _cpu_name(),
        "cores": cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_name() -> str | None:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or None


def load_average() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def versions(*, llama_build: str | None) -> dict[str, str | None]:
    """Floe, Python, the llama.cpp build in use and the packages that matter."""
    return {
        "floe_version": __version__,
        "python_version": platform.python_version(),
        "llama_cpp_build": llama_build,
        "xllamacpp_version": _package("xllamacpp"),
        "numpy_version": _package("numpy"),
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the source tree, with "+changes" when it differs; None outside a checkout."""
    tree = Path(__file__).parent
    try:
        head = _git(tree, "rev-parse", "--short=12", "HEAD")
        changed = _git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", "..")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def today() -> str:
    """Date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
