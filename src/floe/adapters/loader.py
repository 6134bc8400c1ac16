"""Loads and frees, one at a time, in a thread; the loop and the streams on it never wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from floe.adapters.slots import H, Load, Slot, Tier
from floe.core.errors import BadAdapter

T = TypeVar("T")
Run = Callable[..., Awaitable[Any]]

STUCK_S = 60.0
"""A load that runs longer is reported as a failure of the cache."""


class Unwanted(Exception):
    """The load was given up before it began; nobody waits for it."""


class Loader(Generic[H]):
    """Brings slots into memory in the order they were admitted."""

    def __init__(
        self,
        *,
        load: Load[H],
        unload: Callable[[H], None],
        run: Run,
        loaded: Callable[[Slot[H], int, Tier, float], None],
        failed: Callable[[Slot[H], BaseException], None],
        lost: Callable[[int], None],
        idle: Callable[[], None],
    ) -> None:
        """`run` calls a function off the loop. The rest is told what happened, on the loop.

        `loaded`: slot, bytes, where it came from, milliseconds. `lost`: bytes that could not be
        freed. `idle`: nothing is under way any more.
        """
        self._load, self._unload, self._run = load, unload, run
        self._loaded, self._failed, self._lost, self._idle = loaded, failed, lost, idle
        self._clock_s = time.monotonic
        self._turn = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        self._loading: tuple[str, float] | None = None
        self.pending = 0

    @property
    def stuck(self) -> str:
        """Which load does not come to an end; "" if none."""
        loading = self._loading
        if loading is None or self._clock_s() - loading[1] < STUCK_S:
            return ""
        return f"the load of adapter {loading[0]!r} has run for over {STUCK_S:.0f} s"

    def bring(self, slot: Slot[H], victims: Sequence[Slot[H]]) -> None:
        """Free `victims`, then load `slot`; `slot.task` ends when it is there."""
        self.pending += 1
        slot.task = self.start(self._bring(slot, victims))

    def drop(self, slot: Slot[H]) -> asyncio.Task[None]:
        """Free a slot that is in no table any more."""

        async def free() -> None:
            async with self._turn:
                await self._free([slot])

        return self.start(free())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that outlives the request that started it; its error goes to whoever waits."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _bring(self, slot: Slot[H], victims: Sequence[Slot[H]]) -> None:
        try:
            async with self._turn:
                if not slot.is_wanted:
                    await self._free(victims)
                    raise Unwanted
                self._loading = (slot.name, self._clock_s())
                tier, began_s = slot.where(), asyncio.get_running_loop().time()
                handle, size = await self._freed(self._swap, slot, victims)
                took_ms = 1000 * (asyncio.get_running_loop().time() - began_s)
                slot.handle = handle
                self._loaded(slot, size, tier, took_ms)
        except BaseException as error:
            self._failed(slot, error)
            raise
        finally:
            self._loading = None
            self.pending -= 1
            if not self.pending:
                asyncio.get_running_loop().call_soon(self._idle)

    def _swap(self, slot: Slot[H], victims: Sequence[Slot[H]], lost: list[int]) -> tuple[H, int]:
        """In the thread: free first, then load, so that both are never in memory together."""
        self._unload_all(victims, lost)
        with slot.open() as path:
            size = path.stat().st_size
            if size > slot.n_bytes:
                raise BadAdapter(f"adapter {slot.name!r} needs {size} bytes, more than announced")
            try:
                return self._load(path, key=slot.key), size
            except BadAdapter as error:  # a path of the host tier tells nobody anything
                message = error.message.replace(str(path), repr(slot.name))
                is_host = path.is_relative_to("/proc")
                raise (BadAdapter(message) if is_host else error) from error

    async def _free(self, victims: Sequence[Slot[H]]) -> None:
        if victims:
            await self._freed(self._unload_all, victims)

    async def _freed(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args, lost)` off the loop, and tell what it lost."""
        lost: list[int] = []
        try:
            return await self._run(work, *args, lost)  # type: ignore[no-any-return]
        finally:
            if lost:
                self._lost(sum(lost))

    def _unload_all(self, victims: Sequence[Slot[H]], lost: list[int]) -> None:
        """In the thread: free all, then raise the first error."""
        errors: list[Exception] = []
        for victim in victims:
            handle, victim.handle = victim.handle, None
            if handle is None:
                continue
            try:
                self._unload(handle)
            except Exception as error:
                lost.append(victim.n_bytes)
                errors.append(error)
        if errors:
            raise errors[0]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: the waiters, if any are left, raise it
