"""Hedged connections: a second attempt when the first is slow; the faster one is used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpcore
import httpx


class HedgedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's network with a second attempt to connect after `after_s` without a connection.

    Only the connection is made twice: a request is sent once, on the connection that is used.
    `hedged` counts second attempts.
    """

    def __init__(self, inner: httpcore.AsyncNetworkBackend, *, after_s: float) -> None:
        self._inner, self._after_s = inner, after_s
        self.hedged = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The first connection that stands. Raises the last error when none does."""

        def attempt() -> asyncio.Task[httpcore.AsyncNetworkStream]:
            return asyncio.ensure_future(
                self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
            )

        tasks = [attempt()]
        used: asyncio.Task[httpcore.AsyncNetworkStream] | None = None
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._after_s)
            if not done:
                self.hedged += 1
                tasks.append(attempt())
            used = await _first_good(tasks)
            return used.result()
        finally:
            await _close(t for t in tasks if t is not used)

    async def sleep(self, seconds: float) -> None:
        """As httpcore's own."""
        await self._inner.sleep(seconds)


class HedgedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a HedgedBackend; nothing is taken from the environment."""

    def __init__(self, backend: HedgedBackend) -> None:
        super().__init__(trust_env=False)
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20)
        self._pool = httpcore.AsyncConnectionPool(  # httpx has no other way to a backend
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=60.0,
            network_backend=backend,
        )


async def _first_good(
    tasks: list[asyncio.Task[httpcore.AsyncNetworkStream]],
) -> asyncio.Task[httpcore.AsyncNetworkStream]:
    """The first task with a result; the last to fail when there is none."""
    waiting = set(tasks)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None or not waiting:
                return task


async def _close(losers: Iterable[asyncio.Task[httpcore.AsyncNetworkStream]]) -> None:
    tasks = list(losers)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and task.exception() is None:
            await task.result().aclose()
