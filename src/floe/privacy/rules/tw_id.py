"""Taiwan: national id and resident certificates, old and new.

Check: Ministry of the Interior; the letter stands for two digits (10 to 35 in an order of its own),
weights 1, 9, 8 ... 1, 1, mod 10. Since 2021 certificates have 8 or 9 as their second place.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, weighted_sum, words
from floe.privacy.rules.hints import Needs

_LETTERS = "ABCDEFGHJKLMNPQRSTUVXYWZIO"  # A is 10, O is 35
_WEIGHTS = (1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1)


def is_valid(value: str) -> bool:
    """Whether the check digit is right; the second letter of old certificates counts mod 10."""
    code = value.upper()
    first = _LETTERS.index(code[0]) + 10
    second = code[1] if code[1].isdigit() else str(_LETTERS.index(code[1]) % 10)
    return weighted_sum(f"{first}{second}{code[2:]}", _WEIGHTS) % 10 == 0


RULE = PatternRule(
    name="tw_id",
    entity="TW_ID",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Z][1289A-D][0-9]{8}(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.6,
    check=is_valid,
    context=words(
        "身分證", "身份證", "身份证", "居留證", "統一證號", "國民身分", "台湾", "台灣", "taiwan",
        "national id", "arc", "id number", "identity",
    ),
    context_score=0.95,
    needs=Needs(code=10),
)  # fmt: skip
