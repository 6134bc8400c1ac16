"""How a server ends: whoever encloses it is closed, whatever signal ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SERVER = """
from contextlib import contextmanager
from floe.cli.web import listen, run_app

async def app(scope, receive, send):
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})

async def finish():
    print("finished", flush=True)

@contextmanager
def edge():
    try:
        yield
    finally:
        print("kept", flush=True)

with edge():
    started = lambda: print("started", flush=True)
    run_app(app, listen("127.0.0.1", 0), started=started, finish=finish)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, None)]
)
def test_a_signal_closes_what_encloses_the_server(number: int, code: int | None) -> None:
    """What a server learned is written when its edge closes: also for a service manager's stop."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        assert process.stdout.read() == "finished\nkept\n"
    assert code is None or process.returncode == code
