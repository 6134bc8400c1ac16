"""What runs on the engine's thread: a seat of an open session, and the tokens it is being fed.

V = real ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import FloeError
from floe.engine.kv_context import AdapterKey, KvContext, KvSequence


@dataclass(kw_only=True, eq=False)
class Job:
    """Tokens on their way into a sequence that is first cut back to `keep_tokens`."""

    keep_tokens: int
    tokens: Sequence[int]
    every: bool
    future: Future[NDArray[np.float32]]
    undo: Callable[[], None] = lambda: None
    """Called when the job ends without an answer, before anyone can see that it has ended."""
    done_tokens: int = 0
    rows: list[NDArray[np.float32]] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Seat:
    """What an open session owns: a row of a context, and its job if one runs."""

    context: KvContext
    row: KvSequence
    job: Job | None = None
    left: bool = False
    ended_s: float = float("-inf")
    """When its last job ended, on the monotonic clock."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Waiting:
    """A request for a seat; `adapters` are pointers with scales."""

    key: AdapterKey
    adapters: Sequence[tuple[int, float]]
    prompt: Sequence[int]
    need_tokens: int
    future: Future[Seat]


def fail(future: Future[Any], error: FloeError) -> None:
    """Fail a future whose caller may cancel it at the same moment."""
    with suppress(InvalidStateError):
        future.set_exception(error)


def fail_job(seat: Seat, error: FloeError) -> None:
    """End a seat's job, if it has one, without an answer."""
    job = seat.job
    if job is not None:
        job.undo()  # before the seat looks free: its session may submit again at once
        seat.job = None
        fail(job.future, error)


class Outbox:
    """Sets results from a thread of its own, so that the engine can begin the next decode.

    Whoever is woken by a result wants the GIL; set from the engine's thread, it would hold up
    the other streams for as long as it takes to send a token.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[tuple[Future[Any], Any] | None] = SimpleQueue()
        self._done = threading.Semaphore(0)
        self._due, self._new = 0, 0
        self._thread = threading.Thread(target=self._run, name="floe-outbox", daemon=True)
        self._thread.start()

    def put(self, future: Future[Any], result: Any) -> None:
        """Set a running future's result soon."""
        self._new += 1
        self._items.put((future, result))

    def wait(self) -> None:
        """Until everything is set that was put before the last `wait`."""
        for _ in range(self._due):
            self._done.acquire()
        self._due, self._new = self._new, 0

    def close(self) -> None:
        """Set what is left and end the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            future, result = item
            future.set_result(result)
            self._done.release()


def left_tokens(seat: Seat) -> int:
    """Tokens of the seat's job that are not fed yet."""
    return len(seat.job.tokens) - seat.job.done_tokens if seat.job else 0
