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
_RUNS = re.compile(r"[0-9]+")
_CODES = re.compile(r"(?<![0-9A-Za-z])(?:[A-Za-z]++[0-9]|[0-9]++[A-Za-z])[0-9A-Za-z]*")
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
    def run(self) -> int:
        """Length of the longest run of digits."""
        return max(map(len, _RUNS.findall(self.text)), default=0)

    @cached_property
    def codes(self) -> tuple[str, ...]:
        """Every run of ASCII letters and digits that has both."""
        return tuple(_CODES.findall(self.text))

    @cached_property
    def code(self) -> int:
        """Length of the longest of `codes`."""
        return max(map(len, self.codes), default=0)

    @cached_property
    def long(self) -> bool:
        """Whether twenty printable ASCII characters stand without a space."""
        return _LONG.search(self.text) is not None


@dataclass(frozen=True, kw_only=True)
class Cues:
    """Of all of these a text must hold one, in lower case; none at all asks for nothing."""

    words: frozenset[str] = frozenset()
    """Whole runs of ASCII letters."""
    parts: frozenset[str] = frozenset()
    """ASCII text anywhere."""
    foreign: frozenset[str] = frozenset()
    """Other text anywhere."""

    def __bool__(self) -> bool:
        return bool(self.words or self.parts or self.foreign)


def any_of(*parts: str) -> Cues:
    """Cues that are parts of text."""
    return Cues(
        parts=frozenset(p for p in parts if p.isascii()),
        foreign=frozenset(p for p in parts if not p.isascii()),
    )


NO_CUES = Cues()


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a text must hold for a rule to find anything."""

    digits: int = 0
    run: int = 0
    code: int = 0
    han: bool = False
    long: bool = False
    signs: tuple[tuple[str, int], ...] = ()
    """Of these characters one must be there that often."""
    codes: re.Pattern[str] | None = None
    """What one of `Hints.codes` must begin with."""
    cues: Cues = NO_CUES

    def met_by(self, hints: Hints) -> bool:
        """Whether the rule has to look, its cues apart."""
        if self.digits > hints.digits or self.run > hints.run or self.code > hints.code:
            return False
        if (self.han and not hints.han) or (self.long and not hints.long):
            return False
        if self.codes is not None and not any(map(self.codes.match, hints.codes)):
            return False
        return not self.signs or any(hints.text.count(c) >= n for c, n in self.signs)


NOTHING = Needs()
