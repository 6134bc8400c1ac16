"""Indian Aadhaar number (UIDAI): twelve digits, first 2 to 9, Verhoeff check digit."""

from __future__ import annotations

import re

from floe.privacy.rules.base import RIGHT, PatternRule, digits_of, words
from floe.privacy.rules.hints import Needs

_PERMUTE = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def _times(a: int, b: int) -> int:
    """Multiplication in the dihedral group of order ten."""
    if a < 5:
        return (a + b) % 5 if b < 5 else 5 + (a + b) % 5
    return 5 + (a - b) % 5 if b < 5 else (a - b) % 5


def verhoeff(digits: str) -> bool:
    """Whether the last digit is the Verhoeff check digit of the others."""
    check = 0
    for i, char in enumerate(reversed(digits)):
        value = int(char)
        for _ in range(i % 8):
            value = _PERMUTE[value]
        check = _times(check, value)
    return check == 0


def is_valid(value: str) -> bool:
    """Whether the check digit is right and the number is no palindrome (UIDAI gives none)."""
    digits = digits_of(value)
    return digits != digits[::-1] and verhoeff(digits)


_CONTEXT = words("aadhaar", "aadhar", "adhaar", "uidai", "uid", "आधार")

GROUPED = PatternRule(
    name="in_aadhaar",
    needs=Needs(digits=12, run=4),
    entity="IN_AADHAAR",
    pattern=re.compile(
        r"[2-9](?<![0-9A-Za-z].)(?<![0-9][-., ].)[0-9]{3}([ -])[0-9]{4}\1[0-9]{4}"
        rf"{RIGHT}(?! [0-9])"
    ),
    score=0.7,
    check=is_valid,
    context=_CONTEXT,
    context_score=0.95,
)
BARE = PatternRule(
    name="in_aadhaar_bare",
    needs=Needs(digits=12),
    entity="IN_AADHAAR",
    pattern=re.compile(rf"[2-9](?<![0-9A-Za-z].)(?<![0-9][-.,].)[0-9]{{11}}{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=_CONTEXT,
    context_score=0.95,
)
