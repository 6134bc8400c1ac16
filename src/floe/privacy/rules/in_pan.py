"""Indian permanent account numbers: five letters, four digits, a letter, named as such.

The kind of holder (fourth letter) is not checked: people mistype and make up examples.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs

RULE = PatternRule(
    name="in_pan",
    needs=Needs(code=10),
    entity="IN_PAN",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Z]{5}[0-9]{4}[A-Z](?![0-9A-Za-z])", re.IGNORECASE),
    score=0.0,
    context=words("PAN", "permanent account number", "income tax", "tax id"),
    context_score=0.85,
)
