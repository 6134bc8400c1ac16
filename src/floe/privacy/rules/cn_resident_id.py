"""Resident identity card of mainland China: GB 11643-1999 (region, date of birth, check digit)."""

from __future__ import annotations

import datetime
import re

from floe.privacy.rules.base import PatternRule, weighted_sum
from floe.privacy.rules.hints import Needs

_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_CHECK = "10X98765432"


def is_valid(value: str) -> bool:
    """Whether date and check digit (ISO 7064 mod 11-2) are right."""
    digits, check = value[:17], value[17].upper()
    try:
        datetime.date(int(value[6:10]), int(value[10:12]), int(value[12:14]))
    except ValueError:
        return False
    return _CHECK[weighted_sum(digits, _WEIGHTS) % 11] == check


RULE = PatternRule(
    name="cn_resident_id",
    needs=Needs(run=17),
    entity="CN_RESIDENT_ID",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[1-3]|91)[0-9]{4}"
        r"(?:18|19|20)[0-9]{9}[0-9Xx](?![0-9A-Za-z])"
    ),
    score=0.95,
    check=is_valid,
)
