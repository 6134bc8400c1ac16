"""German identity cards, pension insurance and health insurance numbers.

Card: serial of nine from an alphabet without vowels, check digit 7-3-1 (Personalausweisverordnung
annex 3, ICAO Doc 9303). Pension: VKVV section 2 and 3. Health: KVNR, section 290 SGB V, modified
Luhn over the letter as two digits (GKV-Spitzenverband, "Pruefziffernberechnung").
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, mrz_check, words
from floe.privacy.rules.hints import Needs

_SERIAL = "[CFGHJKLMNPRTVWXYZ0-9]"


def is_card(value: str) -> bool:
    """Whether the tenth place checks the nine before."""
    return mrz_check(value[:9]) == int(value[9])


def _cross_sum(digits: str, weights: tuple[int, ...]) -> int:
    """Sum of the digit sums of digit times weight."""
    products = (int(d) * w for d, w in zip(digits, weights, strict=True))
    return sum(p // 10 + p % 10 for p in products)


def is_pension(value: str) -> bool:
    """Whether day, month and check digit can be."""
    code = re.sub("[^0-9A-Z]", "", value.upper())
    day, month = int(code[2:4]), int(code[4:6])
    digits = f"{code[:8]}{ord(code[8]) - 64:02d}{code[9:11]}"
    check = _cross_sum(digits, (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)) % 10
    return 1 <= month <= 12 and 1 <= day <= 31 and check == int(code[11])


def is_health(value: str) -> bool:
    """Whether the tenth place checks the letter and the eight digits."""
    code = value.upper()
    digits = f"{ord(code[0]) - 64:02d}{code[1:9]}"
    return _cross_sum(digits, (1, 2) * 5) % 10 == int(code[9])


CARD = PatternRule(
    name="de_id_card",
    entity="DE_ID_CARD",
    pattern=re.compile(
        rf"[LMNPRTVWXY](?<![0-9A-Za-z].){_SERIAL}{{8}}[0-9](?:D|<<)?(?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.0,
    check=is_card,
    context=words(
        "personalausweis", "ausweis", "ausweisnummer", "personalausweisnummer", "id card",
        "identity card", "german id", "seriennummer", "aufenthaltstitel",
    ),
    context_score=0.95,
    needs=Needs(digits=1, code=10),
)  # fmt: skip
CARD_SERIAL = PatternRule(
    name="de_id_card_serial",
    entity="DE_ID_CARD",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z])(?=[A-Z]*[0-9])[LMNPRTVWXY]{_SERIAL}{{8}}(?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.0,
    context=words(
        "personalausweis", "personalausweisnummer", "ausweisnummer", "ausweis-nr", "ausweisnr"
    ),
    context_score=0.8,
    needs=Needs(digits=1),
)
PENSION = PatternRule(
    name="de_social_security",
    entity="DE_SOCIAL_SECURITY",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])[0-9]{2} ?[0-3][0-9][01][0-9]{3} ?[A-Z] ?[0-9]{3}(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.6,
    check=is_pension,
    context=words(
        "rentenversicherung", "rentenversicherungsnummer", "sozialversicherungsnummer",
        "sozialversicherung", "rvnr", "sv-nummer", "svnr", "versicherungsnummer",
        "social security", "social insurance",
    ),
    context_score=0.95,
    needs=Needs(run=6),
)  # fmt: skip
HEALTH = PatternRule(
    name="de_health_insurance",
    entity="DE_HEALTH_INSURANCE",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Z][0-9]{9}(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.0,
    check=is_health,
    context=words(
        "kvnr", "krankenversichertennummer", "krankenversicherungsnummer", "versichertennummer",
        "krankenversicherung", "krankenkasse", "gesundheitskarte", "egk", "health insurance",
        "versicherten-nr",
    ),
    context_score=0.95,
    needs=Needs(code=10),
)  # fmt: skip
