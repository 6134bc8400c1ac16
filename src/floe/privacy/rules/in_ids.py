"""Indian voter cards, vehicle registrations and GST numbers.

Voter: Election Commission, three letters and seven digits. Vehicle: Central Motor Vehicles Rules
1989, rule 50, codes of states and the BH series of 2021. GSTIN: GST Network, state, PAN, entity,
Z, check character mod 36.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs

_STATES = (
    "AN|AP|AR|AS|BR|CG|CH|DD|DL|DN|GA|GJ|HP|HR|JH|JK|KA|KL|LA|LD|MH|ML|MN|MP|MZ|NL|OD|OR|PB|PY|RJ"
    "|SK|TG|TN|TR|TS|UA|UK|UP|WB"
)
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def is_gstin(value: str) -> bool:
    """Whether the last character checks the fourteen before (factors 1 and 2 in turn)."""
    code = value.upper()
    total = 0
    for i, char in enumerate(code[:14]):
        product = _ALPHABET.index(char) * (1 + i % 2)
        total += product // 36 + product % 36
    return _ALPHABET[-total % 36] == code[14]


VOTER = PatternRule(
    name="in_voter",
    entity="IN_VOTER",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Z]{3}[ /]?[0-9]{7}(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.0,
    context=words("voter", "voter id", "epic", "elector", "election", "electoral", "मतदाता"),
    context_score=0.85,
    needs=Needs(run=7),
)
VEHICLE = PatternRule(
    name="in_vehicle",
    entity="IN_VEHICLE_REGISTRATION",
    pattern=re.compile(
        r"(?=[A-W2-9])[0-9A-Z](?<![0-9A-Za-z].)"
        r"(?:[A-Z](?P<sep>[ -]?)[0-9]{1,2}(?P=sep)[A-HJ-NP-Z]{1,3}(?P=sep)[0-9]{4}"
        r"|[0-9] ?BH ?[0-9]{4} ?[A-HJ-NP-Z]{1,2})(?![0-9A-Za-z])"
    ),
    score=0.65,
    check=lambda value: value[0].isdigit() or value[:2] in _STATES,
    context=words(
        "vehicle", "registration", "car", "plate", "rto", "bike", "scooter", "truck", "number plate"
    ),
    context_score=0.9,
    needs=Needs(run=4),
)
GSTIN = PatternRule(
    name="in_gstin",
    entity="IN_GSTIN",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:[0-2][0-9]|3[0-8]|9[79])[A-Z]{5}[0-9]{4}[A-Z][0-9A-Z]Z[0-9A-Z](?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.9,
    check=is_gstin,
    needs=Needs(code=15),
)
