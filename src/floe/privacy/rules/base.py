"""What a recogniser is: a pattern, a check, words that must be near.

Rules see the normalised copy of the text (`privacy.normalise`). Boundaries are those of ASCII
letters and digits, not `\\b`, so that a value between Chinese characters is found (bug-log B49).
Patterns must run in linear time: a running `re` match cannot be interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from floe.privacy.base import Span

LEFT = r"(?<![0-9A-Za-z])(?<![0-9][-.,])"
RIGHT = r"(?![0-9A-Za-z])(?![-.,][0-9])"
_BEFORE_CHARS = 48
_AFTER_CHARS = 24
_LONGEST_WORD_CHARS = 24


class Rule(Protocol):
    """One recogniser."""

    @property
    def name(self) -> str:
        """The recogniser's name in findings."""
        ...

    @property
    def opaque_too(self) -> bool:
        """Whether it looks inside digests, UUIDs and base64 runs."""
        ...

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        ...


def accept(value: str) -> bool:
    """Take every match of the pattern."""
    return bool(value)


@dataclass(frozen=True, kw_only=True)
class PatternRule:
    """A pattern whose matches pass `check`; `context` lifts `score` to `context_score`.

    A score of 0 means the shape alone says nothing. With a group named "value" only that group
    is the finding, and what stands around it in the pattern is its context.
    """

    name: str
    entity: str
    pattern: re.Pattern[str]
    score: float
    check: Callable[[str], bool] = accept
    context: re.Pattern[str] | None = None
    context_score: float = 0.0
    opaque_too: bool = False

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        group = "value" if "value" in self.pattern.groupindex else 0
        for match in self.pattern.finditer(text):
            start, end = match.span(group)
            if not self.check(match.group(group)):
                continue
            score = self.score
            if self.context is not None and near(text, start, end, self.context):
                score = max(score, self.context_score)
            if score > 0:
                yield Span(
                    entity=self.entity, start=start, end=end, score=score, recogniser=self.name
                )


def words(*terms: str) -> re.Pattern[str]:
    """A pattern for any of the terms as whole words (bug-log B02), CJK ones anywhere."""
    latin = [re.escape(t).replace(r"\ ", r"[ _-]?") for t in terms if t.isascii()]
    other = [re.escape(t) for t in terms if not t.isascii()]
    parts = [rf"(?<![0-9A-Za-z])(?:{'|'.join(latin)})(?![A-Za-z])"] if latin else []
    return re.compile("|".join(parts + other), re.IGNORECASE)


def near(text: str, start: int, end: int, context: re.Pattern[str]) -> bool:
    """Whether a context word stands shortly before or after `[start, end)`."""
    if context.search(text, max(0, start - _BEFORE_CHARS), start):
        return True
    # Looks a word further, so that a cut does not make a whole word out of a longer one.
    after = context.search(text, end, end + _AFTER_CHARS + _LONGEST_WORD_CHARS)
    return after is not None and after.start() < end + _AFTER_CHARS


def digits_of(value: str) -> str:
    """Only the ASCII digits."""
    return re.sub(r"[^0-9]", "", value)


def compact(value: str) -> str:
    """Without separators, upper case."""
    return re.sub(r"[^0-9A-Za-z]", "", value).upper()


def weighted_sum(digits: str, weights: Sequence[int]) -> int:
    """Sum of digit times weight, the usual start of a check digit."""
    return sum(int(d) * w for d, w in zip(digits, weights, strict=True))
