"""Insurance, policy, member and social insurance numbers, named as such.

The US Medicare number has its own file; so have the national numbers with check digits.
"""

from __future__ import annotations

from floe.privacy.rules.base import named

_VALUE = r"[A-Z]{0,5}[-. ]?[0-9](?:[-. /]?[0-9A-Z]){4,19}"


def has_digits(value: str) -> bool:
    """At least five digits: otherwise it is a word or a year."""
    return sum(c.isdigit() for c in value) >= 5


RULE = named(
    name="insurance_number",
    entity="INSURANCE_NUMBER",
    names=(
        "health insurance", "medical insurance", "dental insurance", "life insurance",
        "car insurance", "insurance number", "insurance no", "insurance id", "insurance policy",
        "insurance member", "insurance card", "insurance group", "policy number", "policy no",
        "policy id", "policy #", "policyholder id", "policy holder number", "member id",
        "member number", "member no", "membership number", "subscriber id", "subscriber number",
        "beneficiary id", "beneficiary number", "group number", "health plan", "medicaid",
        "medicare", "claim number", "claim no", "claim id", "health card",
        "versicherungsnummer", "versichertennummer", "versicherungsschein",
        "krankenversicherungsnummer", "numéro de mutuelle", "numéro d'assurance",
        "numéro de police", "numéro d'adhérent", "número de póliza", "poliza",
        "numero di polizza", "polisnummer", "numer polisy", "保单", "保險單", "医保卡", "醫保卡",
        "社保卡", "社会保障卡", "医保", "社保", "社会保障", "健保卡", "健康卡", "医疗保险",
    ),
    value=_VALUE,
    score=0.8,
    check=has_digits,
    digits=2,
)  # fmt: skip
