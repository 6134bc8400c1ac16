"""Driving licences: the British one by its form, others beside the words that name them (B01).

Form of the British number: DVLA, "Driver number" (INF188/2): five letters of the surname filled
up with 9, decade, month (+5 for women), day, year, two initials or 9, one figure, two letters.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, named, words
from floe.privacy.rules.hints import Needs

UK = PatternRule(
    name="uk_driving_licence",
    entity="UK_DRIVING_LICENCE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?=[A-Z9]{5})[A-Z]{1,5}9{0,4}(?<=[A-Z9]{5}) ?[0-9](?:[05][1-9]|[16][0-2])"
        r"(?:0[1-9]|[12][0-9]|3[01])[0-9] ?[A-Z][A-Z9][2-9][A-Z]{2}(?:[0-9]{2})?(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.85,
    context=words("licence", "license", "driving", "driver", "dvla"),
    context_score=0.95,
    needs=Needs(digits=6, code=11),
)


def has_digits(value: str) -> bool:
    """At least four digits, so that no word is a number."""
    return sum(c.isdigit() for c in value) >= 4


US = named(
    name="us_driver_license",
    entity="US_DRIVER_LICENSE",
    names=(
        "driver license", "drivers license", "driver's license", "driver’s license",
        "driver licence", "drivers licence", "driver's licence", "driver’s licence",
        "driving license", "driving licence", "driver permit", "operator license", "dl number",
        "dl no", "dl #", "dl:", "license number", "licence number", "license no",
    ),
    value=r"(?=(?:[A-Z -]{0,8}[0-9]){4})[A-Z0-9](?:[ -]?[A-Z0-9]){4,18}",
    score=0.8,
    check=has_digits,
    digits=3,
)  # fmt: skip
IT = PatternRule(
    name="it_driver_license",
    entity="IT_DRIVER_LICENSE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:[A-Z]{2}[0-9]{7}[A-Z]|U1[BCDFGHJKLMNPRSTUWYXZ0-9]{7}[A-Z])(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.0,
    context=words("patente", "patente di guida", "licenza", "licenza di guida"),
    context_score=0.85,
    needs=Needs(digits=1),
)
OTHER = named(
    name="driver_license",
    entity="DRIVER_LICENSE",
    names=(
        "führerschein", "führerscheinnummer", "fuehrerschein", "permis de conduire",
        "permiso de conducir", "carnet de conducir", "rijbewijs", "rijbewijsnummer",
        "prawo jazdy", "prawa jazdy", "驾驶证", "驾照", "駕照", "駕駛執照", "驾驶证档案",
        "运转免许", "運転免許",
    ),
    value=r"[A-Z0-9](?:[ /-]?[A-Z0-9]){5,19}",
    score=0.8,
    check=has_digits,
    digits=3,
)  # fmt: skip
