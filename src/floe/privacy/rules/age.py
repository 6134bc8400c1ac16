"""Ages: a number with words that make it one. Reported below the score that counts.

`[privacy.scores] AGE = 0.3` makes them count.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_AGE = r"(?:1[01][0-9]|[1-9]?[0-9])"

RULE = PatternRule(
    name="age",
    entity="AGE",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z.,])(?P<value>{_AGE})"
        r"(?=[ -]?(?:(?:years?|yrs?|months?|weeks?)[ -]?olds?|y/?o|yo)(?![0-9A-Za-z])| ?岁| ?周岁)",
        re.IGNORECASE,
    ),
    score=0.3,
    needs=Needs(
        digits=1,
        cues=Cues(words=frozenset(("old", "olds", "y", "yo", "o")), foreign=frozenset(("岁",))),
    ),
)
SAID = PatternRule(
    name="age_said",
    entity="AGE",
    pattern=re.compile(
        r"(?:(?<![0-9A-Za-z])(?:aged?|age of|age is|turn(?:s|ed|ing)?|i'?m|i am)(?: just| only)?"
        rf"[ :]{{1,2}}|年龄[:：为是]?\s?|年满|今年)(?P<value>{_AGE})(?![0-9A-Za-z%$])(?![.,][0-9])",
        re.IGNORECASE,
    ),
    score=0.3,
    needs=Needs(
        digits=1,
        cues=Cues(
            words=frozenset(("age", "aged", "turn", "turns", "turned", "turning", "im")),
            parts=frozenset(("i'm ", "i am ")),
            foreign=frozenset(("年龄", "年满", "今年")),
        ),
    ),
)
