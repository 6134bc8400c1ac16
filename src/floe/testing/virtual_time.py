"""An event loop whose clock jumps: waits are exact and take no real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Jump over the wait; with nothing left to wait for, say so instead of hanging."""
        if timeout is None:
            raise RuntimeError("every task waits for something that nothing will set")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and moves only when all tasks wait. No sockets.

    What would run in a thread (`asyncio.to_thread`) is done at once, in no time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed lets it be a coroutine
        self, _executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """A future that is done: the work was, here and now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # a future carries whatever went wrong to its reader
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`, run on a fresh VirtualLoop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
