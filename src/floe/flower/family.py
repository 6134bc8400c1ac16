"""Processes and their children: started in a session of their own, never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_WATCH_S, _LAST_S = 0.2, 5.0


@contextmanager
def child(
    command: Sequence[str], *, env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all its own, ended with the block."""
    process = start(command, env=env, log=log)
    try:
        yield process
    finally:
        end(process)


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process; what it says goes to the end of `log`, which only its owner can read."""
    with open(log, "ab", opener=_private) as file:
        return subprocess.Popen(
            command, env=dict(env), stdout=file, stderr=file, start_new_session=True
        )


def end(process: subprocess.Popen[bytes], *, patience_s: float = 5.0) -> None:
    """End a process started here and all it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def end_with(parent: int) -> None:
    """End this process once `parent` is gone, a kill -9 of it included."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LAST_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def module(name: str, *arguments: str) -> list[str]:
    """The command line of one of our own modules; nothing of the working folder is imported."""
    return [sys.executable, "-P", "-m", name, *arguments]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
