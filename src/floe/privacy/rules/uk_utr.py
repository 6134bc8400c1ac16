"""UK unique taxpayer reference: ten digits, the first a check digit (HMRC, UTR validation)."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, digits_of, weighted_sum, words
from floe.privacy.rules.hints import Needs

_CHECK = "21987654321"


def is_valid(value: str) -> bool:
    """Whether the first digit checks the nine behind it."""
    digits = digits_of(value)
    return _CHECK[weighted_sum(digits[1:], (6, 7, 8, 9, 10, 5, 4, 3, 2)) % 11] == digits[0]


RULE = PatternRule(
    name="uk_utr",
    entity="UK_UTR",
    pattern=re.compile(rf"{FIRST}[0-9]{{4}} ?[0-9]{{5}}[Kk]?{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=words(
        "utr", "unique taxpayer", "taxpayer reference", "tax reference", "self assessment", "hmrc"
    ),
    context_score=0.95,
    needs=Needs(digits=10),
)
