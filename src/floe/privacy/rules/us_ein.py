"""US employer identification numbers with the prefixes that the IRS gives out, named as such."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, words
from floe.privacy.rules.hints import Needs

# irs.gov, "How EINs are assigned and valid EIN prefixes".
_NEVER = frozenset(("00", "07", "08", "09", "17", "18", "19", "28", "29", "49", "69", "70", "78",
                    "79", "89", "96", "97"))  # fmt: skip

RULE = PatternRule(
    name="us_ein",
    entity="US_EIN",
    pattern=re.compile(rf"{FIRST}[0-9]{{1}}-?[0-9]{{7}}{RIGHT}"),
    score=0.0,
    check=lambda value: value[:2] not in _NEVER,
    context=words(
        "ein", "fein", "employer identification", "employer id", "federal tax id",
        "federal tax identification", "tax id", "tax identification number", "tin",
    ),
    context_score=0.85,
    needs=Needs(run=7),
)  # fmt: skip
