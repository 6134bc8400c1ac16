"""US social security numbers: shape, and the ranges the SSA never gives out."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, digits_of, words
from floe.privacy.rules.hints import Needs


def is_possible(value: str) -> bool:
    """Not area 000, 666 or 900-999, not group 00, not serial 0000, not all the same digit."""
    digits = digits_of(value)
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    if area in ("000", "666") or area[0] == "9" or group == "00" or serial == "0000":
        return False
    return len(set(digits)) > 1


_CONTEXT = words("ssn", "ssns", "ss#", "social security", "social", "soc sec", "社会安全号")

DASHED = PatternRule(
    name="us_ssn",
    needs=Needs(digits=9),
    entity="US_SSN",
    pattern=re.compile(
        # A comma may be that of a table's row.
        r"[0-9](?<![0-9A-Za-z].)(?<![0-9][-.].)[0-9]{2}-[0-9]{2}-[0-9]{4}"
        r"(?![0-9A-Za-z])(?![-.][0-9])"
    ),
    score=0.7,
    check=is_possible,
    context=_CONTEXT,
    context_score=0.95,
)
BARE = PatternRule(
    name="us_ssn_bare",
    needs=Needs(digits=9),
    entity="US_SSN",
    pattern=re.compile(rf"{FIRST}[0-9]{{2}}[ .]?[0-9]{{2}}[ .]?[0-9]{{4}}{RIGHT}"),
    score=0.0,
    check=is_possible,
    context=_CONTEXT,
    context_score=0.85,
)
