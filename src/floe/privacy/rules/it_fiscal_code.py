"""Italian fiscal code (DM 23 December 1976): shape, month letter and check letter."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs

_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3,
         6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        strict=True,
    )
)  # fmt: skip


def is_valid(value: str) -> bool:
    """Whether the last letter is the check letter of the fifteen before."""
    code = value.upper()
    odd = sum(_ODD[c] for c in code[0:15:2])
    even = sum(int(c) if c.isdigit() else ord(c) - ord("A") for c in code[1:15:2])
    return chr(ord("A") + (odd + even) % 26) == code[15]


_D = "[0-9LMNPQRSTUV]"  # letters stand for digits where two people would share a code
RULE = PatternRule(
    name="it_fiscal_code",
    needs=Needs(code=16),
    entity="IT_FISCAL_CODE",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z])[A-Z]{{6}}{_D}{{2}}[ABCDEHLMPRST]{_D}{{2}}[A-Z]{_D}{{3}}[A-Z]"
        r"(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.95,
    check=is_valid,
)
