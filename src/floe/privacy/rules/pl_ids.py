"""Polish tax, business and identity card numbers.

NIP: ordinance of the Minister of Finance, weights 6 5 7 2 3 4 5 6 7 mod 11. REGON: Statistics
Poland, weights 8 9 2 3 4 5 6 7 mod 11. Card: three letters and six digits, the first digit checks
(weights 7 3 1, letters from A = 10).
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, LEFT, RIGHT, PatternRule, digits_of, weighted_sum, words
from floe.privacy.rules.hints import Needs


def is_nip(value: str) -> bool:
    """Whether the tenth digit checks the others."""
    digits = digits_of(value)
    check = weighted_sum(digits[:9], (6, 5, 7, 2, 3, 4, 5, 6, 7)) % 11
    return check == int(digits[9]) and len(set(digits)) > 1


def is_regon(value: str) -> bool:
    """Whether the last digit of nine, or of fourteen, checks the others."""
    short = weighted_sum(value[:8], (8, 9, 2, 3, 4, 5, 6, 7)) % 11 % 10 == int(value[8])
    if len(value) == 9 or not short:
        return short
    weights = (2, 4, 8, 5, 0, 9, 7, 3, 6, 1, 2, 4, 8)
    return weighted_sum(value[:13], weights) % 11 % 10 == int(value[13])


def is_card(value: str) -> bool:
    """Whether the first digit checks the letters and the other digits."""
    code = re.sub("[^0-9A-Z]", "", value.upper())
    values = [int(c, 36) for c in code[:3] + code[4:]]
    weights = (7, 3, 1, 7, 3, 1, 7, 3)
    return sum(v * w for v, w in zip(values, weights, strict=True)) % 10 == int(code[3])


NIP = PatternRule(
    name="pl_nip",
    entity="PL_NIP",
    pattern=re.compile(
        rf"{LEFT}(?:[0-9]{{10}}|[0-9]{{3}}-[0-9]{{2,3}}-[0-9]{{2}}-[0-9]{{2,3}}){RIGHT}"
    ),
    score=0.0,
    check=lambda value: len(digits_of(value)) == 10 and is_nip(value),
    context=words("nip", "numer nip", "identyfikacji podatkowej", "podatnik", "tax id"),
    context_score=0.95,
    needs=Needs(digits=10),
)
REGON = PatternRule(
    name="pl_regon",
    entity="PL_REGON",
    pattern=re.compile(rf"{FIRST}[0-9]{{8}}(?:[0-9]{{5}})?{RIGHT}"),
    score=0.0,
    check=is_regon,
    context=words("regon", "numer regon"),
    context_score=0.95,
    needs=Needs(run=9),
)
CARD = PatternRule(
    name="pl_id_card",
    entity="PL_ID_CARD",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Z]{3} ?[0-9]{6}(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.0,
    check=is_card,
    context=words(
        "dowód", "dowód osobisty", "dowodu", "dowodem", "dowod", "osobistego", "id card",
        "seria i numer", "polish id",
    ),
    context_score=0.95,
    needs=Needs(run=6),
)  # fmt: skip
