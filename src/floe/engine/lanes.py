"""Decodes of several contexts side by side, a core each. V = real ids.

A small model's decode is hundreds of short operations with a barrier after each. Two contexts on
one core each need no barriers: 6.8 ms a token against 9.9 in turn on two cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import FloeError
from floe.engine.jobs import Seat, left_tokens
from floe.engine.kv_context import KvContext, Piece, log_softmax

Outcome = list[NDArray[np.float32]] | FloeError
"""Log-probabilities (wanted, V) of each piece, or why there are none."""


class Lanes:
    """Threads that decode; the caller's is one of them. `n_threads` are the model's in all."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPoolExecutor(max(n_threads - 1, 1), thread_name_prefix="floe-lane")

    def pays(self, n_contexts: int) -> bool:
        """Whether so many contexts at a thread each make better use of the cores than in turn."""
        return n_contexts >= 2 and 2 * n_contexts > self.n_threads

    def sharing(
        self, context: KvContext, busy: Sequence[KvContext], seats: Sequence[Seat]
    ) -> list[KvContext]:
        """The contexts of a turn: `context`, and others of `busy` if all want single tokens."""
        if len(busy) == 1:
            return [context]
        long = {id(s.context) for s in seats if left_tokens(s) > 1}
        short = [c for c in busy if id(c) not in long]
        if context not in short or not self.pays(len(short)):
            return [context]
        first = short.index(context)
        return (short[first:] + short[:first])[: self.n_threads]

    def worth_waiting(self, seats: Sequence[Seat], wait_s: float) -> bool:
        """A stream got a token less than `wait_s` ago, has not asked for the next, and could share.

        It shares a decode with a session of its own context, or a turn where that pays.
        """
        since_s = time.monotonic() - wait_s
        late = [s for s in seats if not s.job and not s.left and s.ended_s > since_s]
        wanted = {id(s.context) for s in seats if s.job}
        if any(id(s.context) in wanted for s in late):
            return True
        return bool(late) and self.pays(len(wanted | {id(s.context) for s in late}))

    def decode(self, plans: Sequence[tuple[KvContext, Sequence[Piece]]]) -> list[Outcome]:
        """One decode of each context; returns when all have ended.

        One context alone gets all threads. More plans than threads take longer, nothing else.
        """
        if self.n_threads > 1:
            for context, _ in plans:
                context.use_threads(self.n_threads if len(plans) == 1 else 1)
        others: list[Future[Outcome]] = [self._pool.submit(_decode, *plan) for plan in plans[1:]]
        try:
            first = [_decode(*plan) for plan in plans[:1]]
        finally:
            wait(others)  # nobody may free a context under a running decode
        return first + [other.result() for other in others]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _decode(context: KvContext, pieces: Sequence[Piece]) -> Outcome:
    try:
        logits = context.decode(pieces)
    except FloeError as error:
        return error
    with np.errstate(invalid="ignore"):  # what is not a number is refused by its reader
        return [log_softmax(rows) if len(rows) else rows for rows in logits]
