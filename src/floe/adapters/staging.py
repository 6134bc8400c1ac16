"""Fetches from the remote to the disk, before a lease asks for room: a slow one holds up nobody.

One fetch for all who wait for the same adapter, at most two at a time. One that nobody waits for
any more is dropped before it starts; one under way goes on, for its file will be wanted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from floe.adapters.loader import Run

_AT_ONCE = 2


class _Dropped(Exception):
    """Nobody waits for it."""


class Staging:
    """Shared fetches by digest."""

    def __init__(self, *, fetch: Callable[[str], None], run: Run) -> None:
        """`fetch` brings a file to the disk, in a thread that `run` gives it."""
        self._fetch, self._run = fetch, run
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[float]] = {}
        self._waiting: dict[str, int] = {}

    async def bring(self, digest: str) -> float | None:
        """Milliseconds that it took, for the first who waits; None for the others.

        Raises:
            BadAdapter: what `fetch` raised, for all who wait.
        """
        task = self._tasks.get(digest)
        is_first = task is None or task.done()
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._work(digest))
            self._tasks[digest] = task
            task.add_done_callback(lambda t: self._ended(digest, t))
        self._waiting[digest] = self._waiting.get(digest, 0) + 1
        try:
            took_ms = await asyncio.shield(task)
        finally:
            self._waiting[digest] -= 1
            if not self._waiting[digest]:
                del self._waiting[digest]
        return took_ms if is_first else None

    async def _work(self, digest: str) -> float:
        async with self._room:
            if not self._waiting.get(digest):
                raise _Dropped
            began_s = asyncio.get_running_loop().time()
            await self._run(self._fetch, digest)
            return 1000 * (asyncio.get_running_loop().time() - began_s)

    def _ended(self, digest: str, task: asyncio.Task[float]) -> None:
        if self._tasks.get(digest) is task:
            del self._tasks[digest]
        if not task.cancelled():
            task.exception()  # marks it as seen: the waiters, if any are left, raise it
