"""What detectors find in labelled texts: by sentence and by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from floe.evaluation.privacy_sets import Example
from floe.privacy.base import Detector, Span

COUNTS = 0.5
"""From this score on a finding keeps a text on the device, the gate's default."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Sentences said to be private: share of the private ones, and of those said to be."""

    recall: float | None
    precision: float | None


def found_by(detectors: Sequence[Detector], text: str) -> list[Span]:
    """The findings of all detectors."""
    return [span for detector in detectors for span in detector.find(text)]


def is_flagged(detectors: Sequence[Detector], text: str) -> bool:
    """Whether any detector finds something that counts; stops at the first that does."""
    return any(counts(detector.find(text)) for detector in detectors)


def counts(spans: Sequence[Span]) -> bool:
    """Whether any of the findings counts."""
    return any(span.score >= COUNTS for span in spans)


def rates(verdicts: Sequence[tuple[bool, bool]]) -> Rates:
    """From pairs (is private, is said to be)."""
    private = sum(a for a, _ in verdicts)
    said = sum(b for _, b in verdicts)
    both = sum(a and b for a, b in verdicts)
    return Rates(recall=_share(both, private), precision=_share(both, said))


def span_recalls(
    examples: Sequence[Example], found: Sequence[Sequence[Span]]
) -> dict[str, float | None]:
    """By entity, the share of labelled places that any finding touches, whatever its score.

    A finding of another name counts, and so does one that points at nobody alone.
    """
    total: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for example, spans in zip(examples, found, strict=True):
        for place in example.places:
            total[place.entity] += 1
            hit[place.entity] += any(s.start < place.end and place.start < s.end for s in spans)
    return {entity: _share(hit[entity], total[entity]) for entity in sorted(total)}


def flagged_share(
    texts: Sequence[tuple[str, str]], flagged: Callable[[str], bool]
) -> dict[str, float | None]:
    """By kind of (kind, text), and under "" of all, the share that is flagged."""
    total: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for kind, text in texts:
        is_hit = flagged(text)
        for name in (kind, ""):
            total[name] += 1
            hit[name] += is_hit
    return {kind: _share(hit[kind], total[kind]) for kind in sorted(total)}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
