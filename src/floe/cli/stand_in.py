"""A second process that stands in for the cloud: `floe cloud` on loopback with a random key."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from floe.core.errors import CloudFailed

_STOP_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Where it answers, and the key it wants."""

    url: str
    key: str = field(repr=False)
    process_id: int


@contextmanager
def stand_in(model: str, *, threads: int) -> Iterator[StandIn]:
    """The running service; it ends with the block, and also when this process is killed.

    Raises:
        CloudFailed: the process ended before it answered.
    """
    key = secrets.token_urlsafe(32)
    command = [sys.executable, "-m", "floe", "cloud", "--model", model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads), "--with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "FLOE_CLOUD_KEY": key},
        text=True,
    )
    try:
        if process.stdout is None:
            raise CloudFailed("the stand-in for the cloud has no output to read its address from")
        url = process.stdout.readline().strip()
        if not url.startswith("http"):
            raise CloudFailed(
                f"the stand-in for the cloud ended with code {process.wait()} before it answered; "
                "its message is above"
            )
        yield StandIn(url=url, key=key, process_id=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
