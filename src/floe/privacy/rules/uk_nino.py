"""UK national insurance number (HMRC NIM39110): prefixes that are given out, suffix A to D."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs

RULE = PatternRule(
    name="uk_nino",
    needs=Needs(digits=6),
    entity="UK_NINO",
    pattern=re.compile(
        r"[A-CEGHJ-PR-TW-Z](?<![0-9A-Za-z].)[A-CEGHJ-NPR-TW-Z](?<!BG|GB|KN|NK|NT|TN|ZZ)"
        r"[ -]?(?:[0-9]{2}[ -]?){3}[A-D](?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.8,
)
