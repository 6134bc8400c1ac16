"""How well the detectors do on labelled texts: what is found, what is missed, what is too much."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from floe.privacy.base import Span
from floe.privacy.labelled import Gold, Labelled
from floe.privacy.policy import PASSAGES, Policy

MISSED = "(missed)"
WORST = 10


@dataclass(frozen=True, kw_only=True)
class EntityFigures:
    """One entity's places: `gold` labelled, `found` touched by any finding, `covered` whole.

    `reported` findings have this name; `right` of them touch a labelled place of any name, or
    stand in a private text where the finding is a passage.
    """

    gold: int
    found: int
    covered: int
    reported: int
    right: int

    @property
    def recall(self) -> float | None:
        """Share of labelled places that were found; None without any."""
        return self.found / self.gold if self.gold else None

    @property
    def precision(self) -> float | None:
        """Share of findings that were right; None without any."""
        return self.right / self.reported if self.reported else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Figures of one file.

    `private_*` speak of whole texts: does it hold anything private? `confusion` counts findings
    by (labelled entity, reported entity), MISSED where there was none. `worst` names lines by the
    characters missed in them, and those of texts that were taken for public. `suggested`: least
    scores by entity that would lose nothing labelled, or find more of it.
    """

    texts: int
    private: int
    private_recall: float | None
    private_precision: float | None
    entities: Mapping[str, EntityFigures]
    confusion: Mapping[tuple[str, str], int]
    worst: Sequence[tuple[int, int]]
    suggested: Mapping[str, float]


@dataclass(kw_only=True)
class Measure:
    """Adds up texts one by one; keeps counts and line numbers, no text."""

    policy: Policy
    _texts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    _counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    _missed: Counter[int] = field(default_factory=Counter)
    _right_scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _wrong_scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _low_scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, labelled: Labelled, spans: Sequence[Span]) -> None:
        """Take one text with everything that was seen in it, however unsure."""
        counted = [s for s in spans if s.score >= self.policy.least_score(s.entity)]
        telling = [s for s in counted if self.policy.treatment(s.entity) != "allow"]
        self._texts[labelled.private, bool(telling)] += 1
        for span in counted:
            if span.entity in PASSAGES:
                self._reported(span, right=labelled.private)
        if labelled.spans is None:
            if labelled.private and not telling:
                self._missed[labelled.line] += len(labelled.text)
            return
        values = [s for s in spans if s.entity not in PASSAGES]
        self._places(labelled, labelled.spans, [s for s in counted if s in values], values)

    def result(self) -> Measured:
        """Everything so far."""
        hit, missed = self._texts[True, True], self._texts[True, False]
        wrong = self._texts[False, True]
        return Measured(
            texts=sum(self._texts.values()),
            private=hit + missed,
            private_recall=hit / (hit + missed) if hit + missed else None,
            private_precision=hit / (hit + wrong) if hit + wrong else None,
            entities={name: _figures(c) for name, c in sorted(self._counts.items())},
            confusion=dict(self._confusion),
            worst=self._missed.most_common(WORST),
            suggested=self._suggested(),
        )

    def _places(
        self,
        labelled: Labelled,
        gold: Sequence[Gold],
        counted: Sequence[Span],
        all_: Sequence[Span],
    ) -> None:
        for place in gold:
            counts = self._counts[place.entity]
            counts["gold"] += 1
            touching = [s for s in counted if _touch(place, s)]
            missed = _uncovered(place, counted, labelled.text)
            counts["found"] += bool(touching)
            counts["covered"] += not missed
            self._missed[labelled.line] += missed
            for name in {s.entity for s in touching} or {MISSED}:
                self._confusion[place.entity, name] += 1
            if not touching:
                for span in (s for s in all_ if _touch(place, s)):
                    self._low_scores[span.entity].append(span.score)
        self._missed += Counter()  # lines where nothing was missed
        for span in counted:
            self._reported(span, right=any(_touch(place, span) for place in gold))

    def _reported(self, span: Span, *, right: bool) -> None:
        self._counts[span.entity]["reported"] += 1
        self._counts[span.entity]["right"] += right
        (self._right_scores if right else self._wrong_scores)[span.entity].append(span.score)

    def _suggested(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for entity, low in self._low_scores.items():
            out[entity] = min(low)
        for entity, wrong in self._wrong_scores.items():
            right = self._right_scores.get(entity)
            if entity not in out and right and min(right) > min(wrong):
                out[entity] = min(right)
        return dict(sorted(out.items()))


def _figures(counts: Counter[str]) -> EntityFigures:
    return EntityFigures(
        gold=counts["gold"],
        found=counts["found"],
        covered=counts["covered"],
        reported=counts["reported"],
        right=counts["right"],
    )


def _touch(place: Gold, span: Span) -> bool:
    return span.start < place.end and place.start < span.end


def _uncovered(place: Gold, spans: Sequence[Span], text: str) -> int:
    """Letters and digits of the place that no finding covers."""
    return sum(
        text[i].isalnum() and not any(s.start <= i < s.end for s in spans)
        for i in range(place.start, place.end)
    )
