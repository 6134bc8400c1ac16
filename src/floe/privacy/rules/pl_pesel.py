"""Polish PESEL (act of 24 September 2010): eleven digits with a date and a check digit."""

from __future__ import annotations

import datetime
import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, weighted_sum, words
from floe.privacy.rules.hints import Needs

_CENTURIES = {0: 1900, 1: 2000, 2: 2100, 3: 2200, 4: 1800}


def is_valid(value: str) -> bool:
    """Whether date (the century is added to the month) and check digit are right."""
    month = int(value[2:4])
    try:
        year = _CENTURIES[month // 20] + int(value[:2])
        datetime.date(year, month % 20, int(value[4:6]))
    except ValueError:
        return False
    return weighted_sum(value, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


RULE = PatternRule(
    name="pl_pesel",
    needs=Needs(run=11),
    entity="PL_PESEL",
    pattern=re.compile(rf"{FIRST}[0-9]{{10}}{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=words("pesel", "numer pesel", "national id", "ewidencyjny"),
    context_score=0.95,
)
