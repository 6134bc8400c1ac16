"""A client that may leave at any moment, and the places it takes while it stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from starlette.types import Message, Receive, Send

from floe.core.errors import Busy
from floe.serving.errors import ClientGone, note

STALLED_S = 60.0
"""A client that takes nothing for so long is gone, whatever its socket says."""


class Slots:
    """At most `most` answers at a time; a place is given back when its block ends (A59)."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._taken = 0

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._taken

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A place for the length of the block.

        Raises:
            Busy: when every place is taken.
        """
        if self._taken >= self._most:
            raise Busy(
                f"{self._most} requests are already waiting (serve.max_waiting): try again later"
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


async def while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, *, request_id: str
) -> None:
    """Run `work` to its end, or stop it and wait for its clean-up when the client leaves.

    Raises:
        ClientGone: the client left first. Whatever `work` raises is raised.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    left = False
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        left = not task.done()
    finally:
        task.cancel()
        gone.cancel()
        end, _ = await asyncio.gather(task, gone, return_exceptions=True)
    if isinstance(end, Exception):
        if not left:
            raise end
        note(end, request_id=request_id)
    if left:
        raise ClientGone


async def deliver(send: Send, message: Message) -> None:
    """Send, waiting for a slow client but not for ever.

    Raises:
        ClientGone: it left, or took nothing for STALLED_S.
    """
    try:
        async with asyncio.timeout(STALLED_S):
            await send(message)
    except (OSError, TimeoutError):
        raise ClientGone from None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
