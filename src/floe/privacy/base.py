"""What the gate asks of a detector, rules and models alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Span:
    """A private place: [start, end) in code points of the text that was given to the detector.

    `entity` is Presidio's name where it has one; `score` is in [0, 1].
    """

    entity: str
    start: int
    end: int
    score: float
    recogniser: str


class Detector(Protocol):
    """Finds private places in a text. May raise or hang: the gate then keeps the text here."""

    @property
    def name(self) -> str:
        """A short name for reasons and reports."""
        ...

    def find(self, text: str) -> Sequence[Span]:
        """Every private place in `text`, in any order, possibly overlapping."""
        ...
