"""Processes that are measured: a worker that answers JSON lines, and what it may inherit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import floe
from floe.core.errors import FloeError

_USERS_SPINCOUNT = os.environ.get("GOMP_SPINCOUNT")
_SOURCE = str(Path(floe.__file__).parents[1])
_GOMP_DEFAULT = "300000"  # what libgomp takes when nothing is set


def environment(*, bare: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a measured process.

    A bare one spins as libgomp would without Floe, a Floe one as Floe chooses; what the user has
    set holds for both.
    """
    values = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"} | dict(extra or {})
    paths = [_SOURCE, *filter(None, [values.get("PYTHONPATH")])]
    values["PYTHONPATH"] = os.pathsep.join(paths)  # a checkout that is not installed works too
    if _USERS_SPINCOUNT is not None:
        values["GOMP_SPINCOUNT"] = _USERS_SPINCOUNT
    elif bare:
        values["GOMP_SPINCOUNT"] = _GOMP_DEFAULT
    return values


class Worker:
    """A child process that answers one command at a time and sleeps in between."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of a command.

        Raises:
            FloeError: it failed, or the process has ended; its stderr says why.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise FloeError(f"a measured process ended with code {code} at {do!r}; see above")
        reply = json.loads(line)
        if "error" in reply:
            raise FloeError(f"{do} failed: {reply['error']}")
        return reply["result"]


@contextmanager
def worker(module: str, arguments: Sequence[str], *, bare: bool) -> Iterator[Worker]:
    """`python -m module arguments` for the length of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(bare=bare),
    )
    try:
        yield Worker(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
