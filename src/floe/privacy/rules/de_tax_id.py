"""German tax id (Steuer-IdNr., section 139b AO): eleven digits, ISO 7064 mod 11,10."""

from __future__ import annotations

import re
from collections import Counter

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, digits_of, words
from floe.privacy.rules.hints import Needs


def is_valid(value: str) -> bool:
    """Whether one digit repeats as the law says and the check digit is right."""
    digits = digits_of(value)
    counts = sorted(Counter(digits[:10]).values(), reverse=True)
    if counts[0] not in (2, 3) or counts[1] > 1 or digits[0] == "0":
        return False
    product = 10
    for digit in digits[:10]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(digits[10])


RULE = PatternRule(
    name="de_tax_id",
    needs=Needs(digits=11),
    entity="DE_TAX_ID",
    pattern=re.compile(rf"{FIRST}[0-9]{{1}}( ?)[0-9]{{3}}\1[0-9]{{3}}\1[0-9]{{3}}{RIGHT}"),
    score=0.0,
    check=is_valid,
    context=words(
        "steuer-id", "steuerid", "steueridentifikationsnummer", "identifikationsnummer", "idnr",
        "steuernummer", "steuer idnr", "tax id", "tin", "tax identification number",
    ),
    context_score=0.95,
)  # fmt: skip
