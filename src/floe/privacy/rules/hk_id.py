"""Hong Kong identity card: one or two letters, six digits, check digit in brackets.

Check: Immigration Department's format; letters from A = 10, a missing first letter as 36, weights
9 to 2, mod 11, "A" for ten.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs, any_of


def is_valid(value: str) -> bool:
    """Whether the check digit is right."""
    code = re.sub("[^0-9A-Z]", "", value.upper())
    letters = code[:-7]
    values = (
        [36] * (2 - len(letters)) + [int(c, 36) for c in letters] + [int(c) for c in code[-7:-1]]
    )
    total = sum(v * w for v, w in zip(values, range(9, 1, -1), strict=True))
    return (total + (10 if code[-1] == "A" else int(code[-1]))) % 11 == 0


_BRACKETS = r"\([0-9A]\)"
BRACKETED = PatternRule(
    name="hk_id",
    entity="HK_ID",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z])[A-Z]{{1,2}} ?[0-9]{{6}} ?{_BRACKETS}(?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.9,
    check=is_valid,
    needs=Needs(run=6, cues=any_of("(")),
)
BARE = PatternRule(
    name="hk_id_named",
    entity="HK_ID",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])[A-Z]{1,2}[0-9]{6}-?[0-9A](?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.0,
    check=is_valid,
    context=words(
        "hkid", "hong kong id", "hong kong identity", "香港身份证", "香港身份證", "身份證",
        "身份证", "hk id",
    ),
    context_score=0.9,
    needs=Needs(run=6),
)  # fmt: skip
