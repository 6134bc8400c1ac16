"""An ASGI app on a real loopback port, in a thread, that can be killed at any moment."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut the connections first, as a dying process would."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await super().shutdown(sockets)
        for _ in range(5):  # let the loop tell the transports that they are closed
            await asyncio.sleep(0)


class LiveServer:
    """A running uvicorn; `url` works at once, since the port listens before the thread starts."""

    def __init__(self, app: Any) -> None:
        # asyncio turns Nagle off only where the protocol is named: else 40 ms a call
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """Drop every connection and stop listening; idempotent."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=10)
        self._socket.close()


@contextmanager
def live(app: Any) -> Iterator[LiveServer]:
    """A server for the length of the block."""
    server = LiveServer(app)
    try:
        yield server
    finally:
        server.kill()
