"""What the cloud says about the tokens of an answer, and how the answer is drafted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FOREIGN = "foreign"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token of the cloud's vocabulary; `end` marks the end of the answer (data is empty)."""

    data: bytes
    log_prob: float
    end: bool = False


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The cloud's most probable tokens after `offset_bytes` bytes of the answer.

    Their mass may be below 1: the rest of the vocabulary was not sent. `said` is what the cloud
    itself went on with at this place, if it is one that speaks along its own answer.
    `tokenizer` is the digest of the cloud's, FOREIGN for one that is not known, empty for the
    SLM's own. A share of `unasked` was never asked for: nothing is known about it.
    """

    offset_bytes: int
    candidates: tuple[Candidate, ...]
    said: bytes = b""
    tokenizer: str = ""
    unasked: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """An answer so far and a draft behind it.

    `ends` are the byte offsets in answer + draft at which the SLM's tokens end: a cloud with the
    same tokenizer follows these very tokens. `ahead_bytes` above 0 says that `answer` is final and
    asks a cloud that speaks along its own answer for places behind it too, so many bytes far.
    """

    answer: bytes
    draft: bytes = b""
    ends: tuple[int, ...] = ()
    ahead_bytes: int = 0

    @property
    def text(self) -> bytes:
        """Answer and draft."""
        return self.answer + self.draft


Advise = Callable[[Question], Awaitable[tuple[Advice, ...]]]
"""Advice after the answer and at places inside and after the draft, by rising offset.

A place without advice is one where the cloud has none: no boundary of its tokens lies there.
"""


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """The SLM's side of one answer. V = its real ids.

    `step` feeds a token and gives the log-probabilities (V,) after it; `rollback` forgets the last
    n tokens fed, while no step is running. `feed_many` feeds T tokens at once and gives those after
    each of them, (T, V). `route_confidence` is the largest share of an adapter, 0 on the base
    alone; `masked` says that the cloud sees placeholders.
    """

    step: Callable[[int], asyncio.Future[NDArray[np.float32]]]
    rollback: Callable[[int], None]
    feed_many: Callable[[Sequence[int]], asyncio.Future[NDArray[np.float32]]] | None = None
    route_confidence: float = 0.0
    masked: bool = False
