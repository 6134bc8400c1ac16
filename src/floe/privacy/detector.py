"""All rules as one detector: normalise, decode, join, find in each copy, map the spans back."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from floe.privacy.base import Span
from floe.privacy.decoding import decoded
from floe.privacy.joining import joined
from floe.privacy.normalise import Normalised, normalise
from floe.privacy.rules import ALL
from floe.privacy.rules.base import Rule
from floe.privacy.rules.hints import Hints
from floe.privacy.rules.index import RuleIndex
from floe.privacy.rules.opaque import opaque_spans


class RuleDetector:
    """Recognisers by pattern and checksum. Pure: same text, same spans."""

    name = "rules"

    def __init__(self, *, rules: Sequence[Rule] = ALL) -> None:
        self._index = RuleIndex(rules)

    def find(self, text: str) -> list[Span]:
        """Spans in `text`, by start; where two overlap only the better one is kept."""
        copy = normalise(text)
        found = self._find(copy)
        for other in (decoded(copy), joined(copy)):
            if other is not None:
                found += self._find(other)
        return best(found)

    def _find(self, copy: Normalised) -> list[Span]:
        hints = Hints(copy.text)
        opaque = opaque_spans(copy.text) if hints.long or hints.code >= 16 else []
        found: list[Span] = []
        for rule in self._index.candidates(hints):
            for span in rule.find(copy.text):
                if rule.opaque_too or not _inside(span, opaque):
                    found.append(_mapped(span, *copy.original(span.start, span.end)))
        return found


def best(spans: Sequence[Span]) -> list[Span]:
    """Spans by start, without those that a higher score, or else a longer one, overlaps."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda s: (-s.score, s.start - s.end, s.start)):
        at = bisect_right(kept, span.start, key=_start)
        left_free = at == 0 or kept[at - 1].end <= span.start
        if left_free and (at == len(kept) or span.end <= kept[at].start):
            insort(kept, span, key=_start)
    return kept


def _start(span: Span) -> int:
    return span.start


def _inside(span: Span, opaque: Sequence[tuple[int, int]]) -> bool:
    at = bisect_right(opaque, span.start, key=lambda place: place[0]) - 1
    return at >= 0 and opaque[at][0] <= span.start and span.end <= opaque[at][1]


def _mapped(span: Span, start: int, end: int) -> Span:
    return Span(
        entity=span.entity, start=start, end=end, score=span.score, recogniser=span.recogniser
    )
