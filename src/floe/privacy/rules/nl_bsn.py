"""Dutch citizen service number (BSN): nine digits with the eleven test, beside a context word."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, digits_of, weighted_sum, words
from floe.privacy.rules.hints import Needs


def is_valid(value: str) -> bool:
    """Whether the weighted sum is a multiple of eleven."""
    digits = digits_of(value)
    return weighted_sum(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0 and len(set(digits)) > 1


RULE = PatternRule(
    name="nl_bsn",
    needs=Needs(digits=9),
    entity="NL_BSN",
    pattern=re.compile(rf"{FIRST}[0-9]{{3}}[. ]?[0-9]{{2}}[. ]?[0-9]{{3}}{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=words("bsn", "burgerservicenummer", "sofinummer", "sofi", "citizen service number"),
    context_score=0.95,
)
