"""One side of the decode benchmark in a process of its own: `decode_worker bare|floe MODEL`.

A command is a JSON line on stdin, its result a JSON line on stdout; between them the process is
blocked in a read, so it takes no core from whoever is measured next.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floe.core.errors import FloeError
from floe.engine.llama_library import library
from floe.evaluation.decode_sides import Bare, Floe


def memory(pid: int | str = "self") -> dict[str, float | None]:
    """Resident and proportional megabytes (10^6 bytes) of a process; None where not known."""
    return {
        "rss_mb": _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS:"),
        "pss_mb": _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:"),
    }


def _kilobytes(path: Path, field: str) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # not Linux, or not ours to read
        return None
    return next((int(n.split()[1]) * 1.024e-3 for n in lines if n.startswith(field)), None)


def facts(side: Bare | Floe) -> dict[str, Any]:
    """What the process is like now."""
    return {
        **memory(),
        "n_vocab": side.n_vocab,
        "llama_build": library().layout.build,
        "torch": "torch" in sys.modules,
        "gomp_spincount": os.environ.get("GOMP_SPINCOUNT"),
    }


def commands(side: Bare | Floe) -> dict[str, Callable[..., Any]]:
    """What the other end may ask for."""
    known: dict[str, Callable[..., Any]] = {
        "facts": lambda: facts(side),
        "decode": side.decode_s,
        "prefill": side.prefill_s,
    }
    if isinstance(side, Floe):
        known |= {
            "async_decode": side.async_decode_s,
            "load": side.load,
            "switch": side.switch_s,
            "rebind": side.rebind_s,
        }
    return known


def main(arguments: list[str] | None = None) -> None:
    """Answer commands until stdin ends."""
    parser = argparse.ArgumentParser(prog="decode_worker")
    parser.add_argument("side", choices=["bare", "floe"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--max-contexts", type=int, default=4)
    given = parser.parse_args(arguments)
    shared = {"threads": given.threads, "context_tokens": given.context_tokens}
    side: Bare | Floe
    if given.side == "bare":
        side = Bare(given.model, **shared)
    else:
        side = Floe(given.model, max_contexts=given.max_contexts, **shared)
    known = commands(side)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply: dict[str, Any] = {"result": known[command.pop("do")](**command)}
        except FloeError as error:
            reply = {"error": error.message}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
