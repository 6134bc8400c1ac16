"""US individual taxpayer numbers (IRS, Pub. 1915): 9xx, group 50-65, 70-88, 90-92 or 94-99."""

from __future__ import annotations

import re

from floe.privacy.rules.base import RIGHT, PatternRule, words
from floe.privacy.rules.hints import Needs

_GROUP = "(?:5[0-9]|6[0-5]|7[0-9]|8[0-8]|9[0-24-9])"
_CONTEXT = words(
    "itin", "individual taxpayer", "taxpayer id", "taxpayer identification", "tax id", "tin"
)

DASHED = PatternRule(
    name="us_itin",
    entity="US_ITIN",
    pattern=re.compile(
        rf"9(?<![0-9A-Za-z].)(?<![0-9][-.,].)[0-9]{{2}}([ -]){_GROUP}\1[0-9]{{4}}{RIGHT}"
    ),
    score=0.6,
    context=_CONTEXT,
    context_score=0.95,
    needs=Needs(digits=9, run=4),
)
BARE = PatternRule(
    name="us_itin_bare",
    entity="US_ITIN",
    pattern=re.compile(rf"9(?<![0-9A-Za-z].)(?<![0-9][-.,].)[0-9]{{2}}{_GROUP}[0-9]{{4}}{RIGHT}"),
    score=0.0,
    context=_CONTEXT,
    context_score=0.85,
    needs=Needs(digits=9),
)
