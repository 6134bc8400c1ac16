"""What the cloud says about the next token of an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token of the cloud's vocabulary; `end` marks the end of the answer (data is empty)."""

    data: bytes
    log_prob: float
    end: bool = False


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The cloud's most probable tokens after `offset_bytes` bytes of the answer.

    Their mass may be below 1: the rest of the vocabulary was not sent.
    """

    offset_bytes: int
    candidates: tuple[Candidate, ...]


Advise = Callable[[bytes], Awaitable[Advice | None]]
"""Ask for advice after these bytes of the answer; None when there is none for that place."""
