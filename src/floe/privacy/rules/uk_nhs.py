"""NHS number (England, Wales, Isle of Man): ten digits, mod 11 (NHS Data Dictionary)."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, digits_of, weighted_sum, words
from floe.privacy.rules.hints import Needs


def is_valid(value: str) -> bool:
    """Whether the tenth digit is the check digit of the others."""
    digits = digits_of(value)
    check = (11 - weighted_sum(digits[:9], range(10, 1, -1)) % 11) % 11
    return check == int(digits[9]) and len(set(digits)) > 1


_CONTEXT = words("nhs", "nhs number", "national health service", "health service number")

RULE = PatternRule(
    name="uk_nhs",
    needs=Needs(digits=10),
    entity="UK_NHS",
    pattern=re.compile(rf"{FIRST}[0-9]{{2}}([ -]?)[0-9]{{3}}\1[0-9]{{4}}{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=_CONTEXT,
    context_score=0.95,
)
