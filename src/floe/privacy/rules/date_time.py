"""Dates and times of any kind. Alone they keep nothing here: all prose has them.

Reported below the score that counts; `[privacy.scores] DATE_TIME = 0.3` makes them count.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)(?![0-9A-Za-z])\.?"
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

NUMBERS = PatternRule(
    name="date_time",
    entity="DATE_TIME",
    pattern=re.compile(
        r"(?=[0-9jfmasond])(?<![0-9A-Za-z./:-])(?:"
        r"(?:19|20)[0-9]{2}[-/.][0-9]{1,2}[-/.][0-9]{1,2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?"
        r"|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
        rf"|[0-9]{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? (?:19|20)[0-9]{{2}})?"
        rf"|{_MONTH} [0-9]{{1,2}}(?:st|nd|rd|th)?(?:,? (?:19|20)[0-9]{{2}})?"
        r"|(?:19|20)[0-9]{2} ?年(?: ?[0-9]{1,2} ?月(?: ?[0-9]{1,2} ?[日号])?)?"
        r"|(?:19|20)[0-9]{2}|[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?: ?[ap]\.?m(?![0-9A-Za-z]))?"
        r")(?![0-9A-Za-z])(?![-./:][0-9])",
        re.IGNORECASE,
    ),
    score=0.3,
    needs=Needs(digits=1),
)
DAYS = PatternRule(
    name="weekday",
    entity="DATE_TIME",
    pattern=re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(_DAYS)})s?(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.3,
    needs=Needs(cues=Cues(words=frozenset([*_DAYS, *(f"{day}s" for day in _DAYS)]))),
)
