"""Ask the cloud beside the SLM: one question at a time, never waited for past its budget."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice, Advise, Question
from floe.core.errors import CloudFailed

FloatArray = NDArray[np.float32]
FAILURES_TO_STOP = 3


class Asking:
    """The questions of one stream.

    A question that is not answered in time is left running, because its answer warms the
    cloud's prefix cache; the next one starts only when it is done. After FAILURES_TO_STOP
    failures in a row the cloud is not asked again.
    """

    def __init__(self, advise: Advise) -> None:
        self._advise = advise
        self._task: asyncio.Task[Advice | None] | None = None
        self._asked = b""
        self._ends: tuple[int, ...] = ()
        self._failures_in_a_row = 0
        self.asked_count = self.missed = self.failed = 0

    @property
    def stopped(self) -> bool:
        """Whether the cloud has failed too often to be asked again."""
        return self._failures_in_a_row >= FAILURES_TO_STOP

    async def advice(
        self, text: bytes, edge: asyncio.Future[FloatArray], budget_ms: float
    ) -> Advice | None:
        """What the cloud says after `text`, or None; returns once `edge` is done.

        Waits for the cloud at most `budget_ms` past the moment `edge` is done, and not at all
        while an older question is still out: this one could not be answered in time anyway.
        Errors of the cloud are counted; any other exception of `advise` or `edge` is raised.
        """
        if text and (not self._ends or self._ends[-1] < len(text)):
            self._ends = (*self._ends, len(text))
        self._start(text)
        while self._task is not None and not edge.done() and not self._answered(text):
            both: set[asyncio.Future[Any]] = {self._task, edge}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and self._asked != text:
                self._start(text)  # the answer was for a place that the stream has passed
        await asyncio.wait({edge})
        if self._task is None or self._asked != text:
            return None
        if not self._task.done():
            await asyncio.wait({self._task}, timeout=budget_ms / 1000)
        if not self._task.done():
            self.missed += 1
            return None
        advice = self._collect()
        return advice if advice is not None and advice.offset_bytes == len(text) else None

    async def close(self) -> None:
        """Cancel the question that is out and wait until it is gone."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._collect()

    def _answered(self, text: bytes) -> bool:
        return self._task is not None and self._task.done() and self._asked == text

    def _start(self, text: bytes) -> None:
        if self._task is not None and self._task.done():
            self._collect()
        if self._task is None and not self.stopped:
            self._asked, self.asked_count = text, self.asked_count + 1
            self._task = asyncio.ensure_future(self._ask(text))

    async def _ask(self, text: bytes) -> Advice | None:
        found = await self._advise(Question(answer=text, ends=self._ends))
        return next((a for a in found if a.offset_bytes == len(text)), None)

    def _collect(self) -> Advice | None:
        task, self._task = self._task, None
        assert task is not None and task.done()
        try:
            advice = task.result()
        except CloudFailed:
            self.failed += 1
            self._failures_in_a_row += 1
            return None
        self._failures_in_a_row = 0
        return advice
