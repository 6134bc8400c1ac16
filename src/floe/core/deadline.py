"""The moment at which an answer has to end, whatever it is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from floe.core.errors import Busy

T = TypeVar("T")


class Deadline:
    """`ms` milliseconds from now; None = never. For use inside a running event loop."""

    def __init__(self, ms: float | None) -> None:
        self._at_s = None if ms is None else asyncio.get_running_loop().time() + ms / 1000
        self.cut = False

    @asynccontextmanager
    async def beginning(self) -> AsyncIterator[None]:
        """A block that must be done before the answer can begin.

        Raises:
            Busy: the deadline came first; what the block waited for was cancelled.
        """
        clock = asyncio.timeout_at(self._at_s)
        try:
            async with clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise Busy("the deadline came before the answer could begin: allow more") from None

    async def until(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items that come in time; then `cut` is true. `items` is the caller's to close."""
        while not self._is_over():
            clock = asyncio.timeout_at(self._at_s)
            try:
                async with clock:
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not clock.expired():
                    raise
                break
            yield item
        self.cut = True

    def _is_over(self) -> bool:
        return self._at_s is not None and asyncio.get_running_loop().time() >= self._at_s
