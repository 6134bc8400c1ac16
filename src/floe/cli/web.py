"""Run an ASGI app on a socket that is known to be free before anything is announced."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from floe.core.errors import BadConfig


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        BadConfig: the address cannot be used, e.g. because another server has it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
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
    app: Any, sock: socket.socket, *, started: Callable[[], Any] | None = None, once: bool = False
) -> Any:
    """Serve until interrupted; `started` runs in a thread when the server answers.

    With `once` the server stops when `started` returns. The result is what `started` returned;
    what it raises ends the server and is raised.
    """
    return asyncio.run(_run(app, sock, started, once))


async def _run(app: Any, sock: socket.socket, started: Callable[[], Any] | None, once: bool) -> Any:
    import uvicorn

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=5, lifespan="on"
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
