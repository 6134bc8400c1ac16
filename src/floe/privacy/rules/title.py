"""Titles before a name. Reported below the score that counts: the name behind it is what counts."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_TITLES = ("mr", "mrs", "ms", "miss", "dr", "prof", "herr", "frau", "mme", "sr", "sra", "sir")

RULE = PatternRule(
    name="title",
    entity="TITLE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:Mrs?|Ms|Miss|Dr|Prof|Herr|Frau|Mme|Sra?|Sir)(?![0-9A-Za-z])\.?"
        r"(?= ?[A-Z\u00c0-\u024f])"
    ),
    score=0.3,
    needs=Needs(cues=Cues(words=frozenset(_TITLES))),
)
