"""Addresses of US forces and embassies abroad: unit or ship, APO, FPO or DPO, AA, AE or AP, code.

USPS Publication 28, section 225 and 238.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

RULE = PatternRule(
    name="us_military_address",
    entity="STREET_ADDRESS",
    pattern=re.compile(
        r"(?:(?<![0-9A-Za-z])(?:(?:PSC|CMR|UNIT|OPS)\s[0-9]{1,5},?\s(?:BOX\s[0-9]{1,5},?\s)?"
        r"|(?:USCGC|USNS|USNV|USS|USAV)\s[A-Z][A-Z.'-]{1,20}(?:\s[A-Z]{1,20})?,?\s))?"
        r"(?<![0-9A-Za-z])(?:APO|FPO|DPO),?\sA[AEP]\s[0-9]{5}(?:-[0-9]{4})?(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.9,
    needs=Needs(run=5, cues=Cues(words=frozenset(("apo", "fpo", "dpo")))),
)
