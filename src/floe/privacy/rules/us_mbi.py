"""US Medicare beneficiary id: eleven places, each with its own alphabet ("MBI format", CMS).

Letters S, L, O, I, B and Z are never used; the second, fifth, eighth and ninth place are letters.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs

_A = "[AC-HJKMNP-RT-Y]"
_AN = "[0-9AC-HJKMNP-RT-Y]"

RULE = PatternRule(
    name="us_mbi",
    entity="US_MBI",
    pattern=re.compile(
        rf"[1-9](?<![0-9A-Za-z].){_A}{_AN}[0-9](?P<sep>[ -]?){_A}{_AN}[0-9](?P=sep)"
        rf"{_A}{{2}}[0-9]{{2}}"
        r"(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.55,
    context=words(
        "mbi", "medicare", "beneficiary", "cms", "medicare id", "medicare number", "hicn"
    ),
    context_score=0.95,
    needs=Needs(code=4),
)
