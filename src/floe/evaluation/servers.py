"""Servers under measurement, each in a process of its own: Floe's, and llama-server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from floe.core.errors import FloeError
from floe.evaluation.processes import environment

_SERVING = re.compile(r"serving on (http://\S+)/v1")
START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that answers. `ready_cpu_s`: the CPU it had used by then, None where not known."""

    url: str
    pid: int
    ready_cpu_s: float | None


def cpu_s(pid: int) -> float | None:
    """CPU seconds, user and system, of a process and its ended children; None where not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux
        return None
    return sum(int(f) for f in fields[11:15]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def floe_server(
    home: Path, config: Path, *, module: Sequence[str] = ("floe",)
) -> Iterator[Running]:
    """`floe serve` for the length of the block, once /ready answers.

    `module`: what runs in its place, with arguments that come before `serve`.

    Raises:
        FloeError: it ended before it was ready, or took too long; with the end of its log.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *module, "serve", "--config", str(config), "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(bare=False, extra={"FLOE_HOME": str(home)}),
    )
    assert process.stderr is not None
    try:
        url = _announced(process, process.stderr)
        _wait_ready(url, process)
        yield Running(url=url, pid=process.pid, ready_cpu_s=cpu_s(process.pid))
    finally:
        _end(process)


def _announced(process: subprocess.Popen[str], log: IO[str]) -> str:
    seen: list[str] = []
    for line in log:
        seen.append(line)
        if found := _SERVING.search(line):
            # the pipe must not fill up while nobody reads
            threading.Thread(target=log.read, daemon=True).start()
            return found[1]
    code = process.wait()
    raise FloeError(f"floe serve ended with code {code}: {''.join(seen[-5:]).strip()}")


def _wait_ready(url: str, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(url + "/ready", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not listening or not ready yet
        time.sleep(0.01)
    raise FloeError(f"{url}/ready did not answer 200 within {START_S:g} s")


@contextmanager
def peer_server(model: Path, adapters: Sequence[str], *, threads: int) -> Iterator[str]:
    """The address of llama-server for the length of the block.

    Raises:
        FloeError: it did not start.
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "floe.evaluation.peer_server", str(model)),
            *("--threads", str(threads)),
            *(part for adapter in adapters for part in ("--adapter", adapter)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(bare=True),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("{"):
            raise FloeError(f"llama-server ended with code {process.wait()} before it served")
        yield json.loads(line)["url"]
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
