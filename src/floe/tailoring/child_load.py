"""An untried model file is loaded by a child process first: ggml's asserts end the process.

The child is a command that gets the file's path as its last argument and prints one JSON object;
which one is for the caller to say (`engine.load_child` runs the serving engine).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floe.core.errors import BadModel, BadPlan

_SAID_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a child found: tokens decoded greedily, resident bytes the model added, its width.

    `rss_bytes` counts mapped weights that were touched; None where the system does not tell.
    """

    tokens: tuple[int, ...]
    n_vocab: int
    rss_bytes: int | None
    load_ms: float


def try_load(path: Path, *, command: Sequence[str], timeout_s: float = 120.0) -> Loaded:
    """Load the file in a child that decodes two tokens.

    Raises:
        BadModel: the child crashed, was refused the file, or did not end in time; the file must
            not be loaded in this process.
        BadPlan: the child cannot be run at all.
    """
    try:
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, timeout=timeout_s, check=False,
            errors="replace", env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BadModel(
            f"{path} was not loaded within {timeout_s:g} s in a process of its own; it is not "
            "used. Build it smaller, or validate with a longer time"
        ) from error
    except OSError as error:
        raise BadPlan(f"cannot run {command[0]} to try the model: {error.strerror}") from error
    reply = _reply(done.stdout)
    if done.returncode == 0 and reply is not None and "tokens" in reply:
        return _loaded(path, reply)
    if reply is not None and "error" in reply:
        raise BadModel(f"{path} cannot be used: {reply['error']}")
    raise BadModel(
        f"{path} ends the process that loads it ({_how(done.returncode)}): {_said(done.stderr)} "
        "It is not used. Query heads must be a multiple of KV heads in every layer, and every "
        "shape as the header says: check with floe tailor validate, or build it again"
    )


def _reply(stdout: str) -> dict[str, Any] | None:
    for line in reversed(stdout.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def _loaded(path: Path, reply: dict[str, Any]) -> Loaded:
    rss = reply.get("rss_bytes")
    try:
        return Loaded(
            tokens=tuple(int(t) for t in reply["tokens"]),
            n_vocab=int(reply["n_vocab"]),
            rss_bytes=None if rss is None else int(rss),
            load_ms=float(reply["load_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadModel(f"{path}: the process that loaded it gave no sense; see its log") from error


def _how(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit {code}"


def _said(stderr: str) -> str:
    """The line that tells the cause: an assert's, else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    asserts = [line for line in lines if "GGML_ASSERT" in line or "Error" in line]
    chosen = asserts[0] if asserts else (lines[-1] if lines else "it said nothing.")
    return chosen[-_SAID_CHARS:] + ("" if chosen.endswith(".") else ".")
