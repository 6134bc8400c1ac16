"""The private values of one request: where they stand in a text, also a text not yet at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ODD = {"\u03c2": "\u03c3", "\u017f": "s"}  # final sigma, long s: the same letters elsewhere


@dataclass(frozen=True, kw_only=True)
class Value:
    """A string that must not leave; `is_word` = only where it stands as a word of its own."""

    text: str
    placeholder: str
    is_word: bool = False


@dataclass(frozen=True, kw_only=True)
class Cover:
    """(start, end, placeholder) by start, in code points of a text.

    Behind `safe_end` stands what may be the beginning of a value (or of a longer one), so nothing
    from there on may leave yet. No place crosses it.
    """

    places: tuple[tuple[int, int, str], ...]
    safe_end: int


class Values:
    """Finds values leftmost first, the longest at each place, without regard to case.

    A longer text gets the cover of every shorter one it begins with, and more behind it.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        self.values = tuple(values)
        self._by_fold: dict[str, Value] = {}
        for value in self.values:
            self._by_fold.setdefault(fold(value.text), value)
        folded = sorted(self._by_fold, key=lambda f: (-len(f), f))
        self._longest = len(folded[0]) if folded else 0
        self._pattern = re.compile("|".join(map(self._alternative, folded)) or r"(?!)")
        self._starts = {f[:n] for f in folded for n in range(1, len(f))}
        self._words = {f for f in folded if self._by_fold[f].is_word}

    @property
    def placeholders(self) -> dict[str, str]:
        """What each placeholder stands for."""
        return {v.placeholder: v.text for v in self.values}

    def find(self, folded: str, start: int, end: int) -> Iterator[tuple[int, int, Value]]:
        """(start, end, value) in that part of a text that `fold` was applied to, by start."""
        for match in self._pattern.finditer(folded, start, end):
            yield match.start(), match.end(), self._by_fold[match.group()]

    def held_in(self, text: str) -> bool:
        """Whether any value stands in `text`."""
        return self._pattern.search(fold(text)) is not None

    def cover(self, text: str) -> Cover:
        """Every value in a text that may still grow at its end."""
        folded = fold(text)
        found = [(a, b, v.placeholder) for a, b, v in self.find(folded, 0, len(text))]
        safe_end = self._safe_end(folded, found)
        return Cover(places=tuple(p for p in found if p[0] < safe_end), safe_end=safe_end)

    def _safe_end(self, folded: str, found: list[tuple[int, int, str]]) -> int:
        for start in range(max(0, len(folded) - self._longest), len(folded)):
            inside = any(a < start < b for a, b, _ in found)
            if not inside and self._may_grow(folded, start):
                return start
        return len(folded)

    def _may_grow(self, folded: str, start: int) -> bool:
        """Whether `folded[start:]` begins a value, or is a word whose end is not known yet."""
        return folded[start:] in self._starts or folded[start:] in self._words

    def _alternative(self, folded: str) -> str:
        plain = re.escape(folded)
        return rf"(?<!\w){plain}(?!\w)" if self._by_fold[folded].is_word else plain


def fold(text: str) -> str:
    """Small letters, one for one: each code point on its own, so that offsets stay."""
    if text.isascii():
        return text.lower()
    return "".join(map(_fold_one, text))


def _fold_one(char: str) -> str:
    small = char.lower()
    return _ODD.get(small, small) if len(small) == 1 else char
