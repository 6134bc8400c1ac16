"""Run an ASGI app on a socket that is known to be free before anything is announced."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from floe.core.errors import BadConfig


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        BadConfig: the address cannot be used, e.g. because another server has it.
    """
    if not 0 <= port <= 65535:
        raise BadConfig("a port is a number from 0 to 65535", param="port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Naming the protocol lets asyncio switch Nagle's delay off: 40 ms a small message otherwise.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        reason = error.strerror or "not available"
        raise BadConfig(
            f"cannot listen on {host}:{port}: {reason}. Choose another with --port", param="port"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The address of a bound socket as a URL."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_app(
    app: Any,
    sock: socket.socket,
    *,
    started: Callable[[], Any] | None = None,
    once: bool = False,
    finish: Callable[[], Awaitable[None]] | None = None,
) -> Any:
    """Serve until interrupted or ended; `started` runs in a thread when the server answers.

    SIGTERM ends in SystemExit, so that what encloses this is closed and keeps what it learned.

    With `once` the server stops when `started` returns. `finish` runs at the end, on the server's
    loop. The result is what `started` returned; what it raises ends the server and is raised.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("floe").setLevel(logging.INFO)

    async def run() -> Any:
        try:
            return await _serve(app, sock, started, once)
        finally:
            if finish is not None:
                await finish()

    with _ended_by_exit():
        return asyncio.run(run())


@contextmanager
def _ended_by_exit() -> Iterator[None]:
    """SIGTERM raises SystemExit in the block, unless somebody handles it already."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def _serve(
    app: Any, sock: socket.socket, started: Callable[[], Any] | None, once: bool
) -> Any:
    import uvicorn

    config = uvicorn.Config(
        app,
        ws="none",  # no route speaks it
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    result = None
    if started is not None:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        try:
            result = await asyncio.to_thread(started)
        except BaseException:
            server.should_exit = True
            await serving
            raise
        if once:
            server.should_exit = True
    await serving
    return result
