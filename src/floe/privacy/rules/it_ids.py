"""Italian VAT numbers (Luhn, DPR 633/1972 art. 35) and identity cards, beside their names."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, luhn_sum, words
from floe.privacy.rules.hints import Needs

VAT = PatternRule(
    name="it_vat",
    entity="IT_VAT_CODE",
    pattern=re.compile(r"(?<![0-9A-Za-z])(?:IT ?)?(?P<value>[0-9]{11})(?![0-9A-Za-z])"),
    score=0.0,
    check=lambda value: luhn_sum(value) % 10 == 0 and len(set(value)) > 1,
    context=words("partita iva", "p.iva", "p. iva", "piva", "vat", "iva"),
    context_score=0.9,
    needs=Needs(run=11),
)
CARD = PatternRule(
    name="it_identity_card",
    entity="IT_IDENTITY_CARD",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:[A-Z]{2} ?[0-9]{7}|[0-9]{7}[A-Z]{2}|C[A-Z] ?[0-9]{5}[A-Z]{2})"
        r"(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.0,
    context=words(
        "carta d'identità", "carta d’identità", "carta identità", "carta d'identita",
        "carta di identità", "documento d'identità", "cie", "italian id", "identity card",
    ),
    context_score=0.85,
    needs=Needs(run=5),
)  # fmt: skip
