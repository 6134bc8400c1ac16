"""What a text holds at all, read once per text, so that most rules need not look at it.

A hint may promise too much (a rule then looks in vain) but never too little: the tests compare
findings with and without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_WORDS = re.compile(r"[a-z]+")
# Wider than what any rule allows between the digits of one number.
_NUMBERS = re.compile(r"[0-9](?:[^0-9A-Za-z\u0100-\U0010ffff]{0,3}[0-9])*")
_DIGITS = re.compile(r"[^0-9]")
_CODES = re.compile(r"[0-9A-Za-z]{8,}")
_LONG = re.compile(r"[!-~]{20}")
_HAN = re.compile(r"[\u3400-\u9fff]")


class Hints:
    """Facts about a normalised text, each computed when first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lower(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    @cached_property
    def words(self) -> frozenset[str]:
        """Every run of ASCII letters, in lower case."""
        return frozenset(_WORDS.findall(self.lower))

    @cached_property
    def foreign(self) -> bool:
        """Whether anything is not ASCII."""
        return not self.text.isascii()

    @cached_property
    def han(self) -> bool:
        """Whether there are Chinese characters."""
        return self.foreign and _HAN.search(self.text) is not None

    @cached_property
    def digits(self) -> int:
        """Most digits in one number, with up to three separators between them."""
        longest = 0
        for number in _NUMBERS.findall(self.text):
            if len(number) > longest:
                longest = max(longest, len(_DIGITS.sub("", number)))
        return longest

    @cached_property
    def code(self) -> int:
        """Length of the longest run of ASCII letters and digits that has both; 0 below eight."""
        return max(
            (
                len(run)
                for run in _CODES.findall(self.text)
                if not run.isalpha() and not run.isdigit()
            ),
            default=0,
        )

    @cached_property
    def long(self) -> bool:
        """Whether twenty printable ASCII characters stand without a space."""
        return _LONG.search(self.text) is not None

    def holds(
        self, *, words: frozenset[str], parts: tuple[str, ...], foreign: tuple[str, ...]
    ) -> bool:
        """Whether one of the words, or of the pieces of text, is there."""
        if not words.isdisjoint(self.words):
            return True
        lower = self.lower
        return any(part in lower for part in parts) or (
            self.foreign and any(part in lower for part in foreign)
        )


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a text must hold for a rule to find anything."""

    digits: int = 0
    code: int = 0
    han: bool = False
    long: bool = False
    signs: tuple[tuple[str, int], ...] = ()
    """Of these characters one must be there that often."""
    any_of: tuple[str, ...] = ()
    """Of these, in lower case, at least one anywhere in the text; empty asks for nothing."""
    words: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    """Of words, parts, and parts that are not ASCII, one must be there; empty asks for nothing."""

    def met_by(self, hints: Hints) -> bool:
        """Whether the rule has to look."""
        if self.han and not hints.han:
            return False
        if self.digits > hints.digits or self.code > hints.code:
            return False
        if self.long and not hints.long:
            return False
        if self.signs and not any(hints.text.count(c) >= n for c, n in self.signs):
            return False
        if self.any_of and not any(part in hints.lower for part in self.any_of):
            return False
        if not (self.words or self.parts or self.foreign):
            return True
        return hints.holds(words=self.words, parts=self.parts, foreign=self.foreign)


NOTHING = Needs()
