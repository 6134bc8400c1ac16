"""What a recogniser is: a pattern, a check, words that must be near.

Rules see the normalised copy of the text (`privacy.normalise`). Boundaries are those of ASCII
letters and digits, not `\\b`, so that a value between Chinese characters is found (bug-log B49).
Patterns must run in linear time: a running `re` match cannot be interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from floe.privacy.base import Span
from floe.privacy.rules.hints import NOTHING, Cues, Needs

LEFT = r"(?<![0-9A-Za-z])(?<![0-9][-.,])"
# The same, written behind the first digit: `re` then skips quickly to digits.
FIRST = r"[0-9](?<![0-9A-Za-z].)(?<![0-9][-.,].)"
RIGHT = r"(?![0-9A-Za-z])(?![-.,][0-9])"
_BEFORE_CHARS = 48
_AFTER_CHARS = 24
_LONGEST_WORD_CHARS = 24
_PLAIN_TERM = re.compile(r"[a-z]+(?: [a-z]+)*")


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

    @property
    def needs(self) -> Needs:
        """What a text must hold at the least."""
        ...

    @property
    def cues(self) -> Cues:
        """Words and parts of which a text must hold one; empty asks for none."""
        ...

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        ...


class Words:
    """Terms as whole words (bug-log B02), CJK and accented ones anywhere; case does not matter."""

    def __init__(self, terms: Sequence[str]) -> None:
        latin = [re.escape(t).replace(r"\ ", r"[ _-]?") for t in terms if t.isascii()]
        other = [re.escape(t) for t in terms if not t.isascii()]
        parts = [rf"(?<![0-9A-Za-z])(?:{'|'.join(latin)})(?![A-Za-z])"] if latin else []
        self._pattern = re.compile("|".join(parts + other), re.IGNORECASE)
        self.cues = _cues(terms)
        """What shows that a term may be there."""

    def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
        """The first term in `text[start:end]`."""
        return self._pattern.search(text, start, end)


def _cues(terms: Sequence[str]) -> Cues:
    """A word, a part of ASCII text or a part of other text for each of the terms.

    "tax id" may be written "taxid", so its words count joined as well.
    """
    first: set[str] = set()
    parts: set[str] = set()
    other: set[str] = set()
    for term in map(str.lower, terms):
        if not term.isascii():
            other.add(term)
        elif _PLAIN_TERM.fullmatch(term):
            first.update(accumulate(term.split()))
        else:
            parts.add(term.split()[0])
    return Cues(words=frozenset(first), parts=frozenset(parts), foreign=frozenset(other))


def accept(value: str) -> bool:
    """Take every match of the pattern."""
    return bool(value)


@dataclass(frozen=True, kw_only=True)
class PatternRule:
    """A pattern whose matches pass `check`; `context` lifts `score` to `context_score`.

    A score of 0 means the shape alone says nothing. With a group named "value" that matched, only
    that group is the finding, and what stands around it in the pattern is its context.
    """

    name: str
    entity: str
    pattern: re.Pattern[str]
    score: float
    check: Callable[[str], bool] = accept
    context: Words | None = None
    context_score: float = 0.0
    opaque_too: bool = False
    needs: Needs = NOTHING
    before: re.Pattern[str] | None = None
    """What must match in the text right before the finding (write it with a final `$`)."""

    @property
    def cues(self) -> Cues:
        """Those of `needs`, or of the context where the shape alone says nothing."""
        if self.needs.cues or self.context is None or self.score > 0:
            return self.needs.cues
        return self.context.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        named_value = "value" in self.pattern.groupindex
        for match in self.pattern.finditer(text):
            group = "value" if named_value and match["value"] is not None else 0
            start, end = match.span(group)
            if not self.check(match.group(group)):
                continue
            if self.before and not self.before.search(text, max(0, start - _BEFORE_CHARS), start):
                continue
            score = self.score
            if self.context is not None and near(text, start, end, self.context):
                score = max(score, self.context_score)
            if score > 0:
                yield Span(
                    entity=self.entity, start=start, end=end, score=score, recogniser=self.name
                )


def words(*terms: str) -> Words:
    """The terms as a context."""
    return Words(terms)


def near(text: str, start: int, end: int, context: Words) -> bool:
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


_FILLER = (
    r"(?:[ _-]?(?:card|policy|member|number|numbers|numero|numéro|número|nummer|num|no|nr|n°|nº|id"
    r"|code|#|号码|號碼|编号|編號|号|號)){0,3}"
    r"\.?(?: ?\([^()\n]{1,20}\))?[\s:#=\"'“-]{0,4}"
    r"(?:is|was|are|ist|lautet|est|es|è|to|to be|jest|to jest|的?[是为為]|的)?[\s:#=\"'“]{0,3}"
)


def named(
    *,
    name: str,
    entity: str,
    names: Sequence[str],
    value: str,
    score: float,
    check: Callable[[str], bool] = accept,
    digits: int = 0,
) -> PatternRule:
    """A rule for a value (a pattern without groups) right behind one of `names`.

    Between them only "number", "no.", a bracket, "is", a colon and alike. Case does not matter.
    """
    latin = [re.escape(n).replace(r"\ ", r"[ _-]?") for n in names if n.isascii()]
    other = [re.escape(n) for n in names if not n.isascii()]
    # A name that ends with a letter must end there.
    parts = [rf"(?<![0-9A-Za-z])(?:{'|'.join(latin)})(?!(?<=[A-Za-z])[A-Za-z])"] if latin else []
    return PatternRule(
        name=name,
        entity=entity,
        pattern=re.compile(
            rf"(?:{'|'.join(parts + other)}){_FILLER}(?<![0-9A-Za-z])"
            rf"(?P<value>{value})(?![0-9A-Za-z])(?![-.,/][0-9])",
            re.IGNORECASE,
        ),
        score=score,
        check=check,
        needs=Needs(digits=digits, cues=_cues(names)),
    )


def luhn_sum(digits: str) -> int:
    """Sum of the digits, every second one from the right doubled (ISO/IEC 7812-1, Annex B)."""
    total = 0
    for i, char in enumerate(reversed(digits)):
        value = int(char) * (1 + i % 2)
        total += value - 9 if value > 9 else value
    return total


def mrz_check(code: str) -> int:
    """The check digit of machine readable documents: weights 7, 3, 1 (ICAO Doc 9303-3, 4.9)."""
    return sum(int(c, 36) * (7, 3, 1)[i % 3] for i, c in enumerate(code.upper())) % 10
