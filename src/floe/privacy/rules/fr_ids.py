"""French social security number with its key, and national identity cards.

NIR: INSEE, "Structure du numero": sex, year, month, department (2A and 2B for Corsica), commune,
order; key = 97 - number mod 97. Cards: old ones twelve digits, since 2021 nine places.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, compact, words
from floe.privacy.rules.hints import Needs, any_of


def is_nir(value: str) -> bool:
    """Whether the two last digits are the key of the thirteen places before."""
    code = compact(value)
    number = code[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(code[13:])


def _nir(department: str) -> re.Pattern[str]:
    return re.compile(
        r"[1-478](?<![0-9A-Za-z].)(?P<sep>[ .-]?)[0-9]{2}(?P=sep)"
        r"(?:0[1-9]|1[0-2]|[2-9][0-9])(?P=sep)"
        rf"{department}(?P=sep)[0-9]{{3}}(?P=sep)[0-9]{{3}} ?(?P=sep)[0-9]{{2}}(?![0-9A-Za-z])"
    )


_CONTEXT = words(
    "nir", "sécurité sociale", "securite sociale", "numéro de sécu", "insee", "sécu",
    "carte vitale", "social security",
)  # fmt: skip

NIR = PatternRule(
    name="fr_nir",
    entity="FR_NIR",
    pattern=_nir("[0-9]{2}"),
    score=0.7,
    check=is_nir,
    context=_CONTEXT,
    context_score=0.97,
    needs=Needs(digits=15),
)
NIR_CORSICA = PatternRule(
    name="fr_nir_corsica",
    entity="FR_NIR",
    pattern=_nir("2[AaBb]"),
    score=0.7,
    check=is_nir,
    context=_CONTEXT,
    context_score=0.97,
    needs=Needs(digits=6, cues=any_of("2a", "2b")),
)
CARD = PatternRule(
    name="fr_cni",
    entity="FR_CNI",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:[0-9]{12}|(?=[A-Z0-9]{0,8}[0-9])[A-Z0-9]{9})(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.0,
    check=lambda value: sum(c.isdigit() for c in value) >= 3,
    context=words(
        "cni", "carte d'identité", "carte d’identité", "carte nationale", "carte d'identite",
        "french id", "pièce d'identité",
    ),
    context_score=0.8,
    needs=Needs(digits=1),
)  # fmt: skip
