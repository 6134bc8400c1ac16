"""Spanish DNI and NIE (Real Decreto 1553/2005, Orden INT/2058/2008): check letter mod 23."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, compact, words
from floe.privacy.rules.hints import Needs

_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"


def is_valid(value: str) -> bool:
    """Whether the letter belongs to the number; X, Y and Z lead as 0, 1 and 2."""
    code = compact(value)
    number = code[:-1].translate(str.maketrans("XYZ", "012"))
    return _LETTERS[int(number) % 23] == code[-1]


_CONTEXT = words("dni", "nif", "nie", "documento", "identidad", "extranjero", "identificación")

DNI = PatternRule(
    name="es_dni",
    needs=Needs(run=8),
    entity="ES_NIF",
    pattern=re.compile(r"[0-9](?<![0-9A-Za-z].)[0-9]{7}[ -]?[A-HJ-NP-TV-Z](?![0-9A-Za-z])", re.I),
    score=0.6,
    check=is_valid,
    context=_CONTEXT,
    context_score=0.95,
)
NIE = PatternRule(
    name="es_nie",
    needs=Needs(run=7),
    entity="ES_NIE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])[XYZ][ -]?[0-9]{7}[ -]?[A-HJ-NP-TV-Z](?![0-9A-Za-z])", re.I
    ),
    score=0.7,
    check=is_valid,
    context=_CONTEXT,
    context_score=0.95,
)
