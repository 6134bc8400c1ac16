"""US providers: NPI (45 CFR 162.406, Luhn with prefix 80840) and DEA registration numbers.

DEA: letter of the registrant's kind, first letter of the name or 9, six digits and a check digit
(21 CFR 1301 practice; Diversion Control Division, "DEA registration validation").
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import RIGHT, PatternRule, luhn_sum, words
from floe.privacy.rules.hints import Needs


def is_npi(value: str) -> bool:
    """Whether the check digit is right under the prefix of US health cards."""
    return luhn_sum("80840" + value) % 10 == 0


def is_dea(value: str) -> bool:
    """Whether the last digit checks the six before."""
    d = [int(c) for c in re.sub("[^0-9]", "", value)[-7:]]
    return (d[0] + d[2] + d[4] + 2 * (d[1] + d[3] + d[5])) % 10 == d[6]


NPI = PatternRule(
    name="us_npi",
    entity="US_NPI",
    pattern=re.compile(rf"[12](?<![0-9A-Za-z].)(?<![0-9][-.,].)[0-9]{{9}}{RIGHT}"),
    score=0.0,
    check=is_npi,
    context=words("npi", "national provider", "provider identifier", "provider id", "nppes"),
    context_score=0.95,
    needs=Needs(run=10),
)
DEA = PatternRule(
    name="us_dea",
    entity="MEDICAL_LICENSE",
    pattern=re.compile(
        r"[ABCDEFGHJKLMPRSTUX](?<![0-9A-Za-z].)[A-Z9]-?[0-9]{7}(?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.0,
    check=is_dea,
    context=words("dea", "prescriber", "controlled substance", "medical license", "registration"),
    context_score=0.9,
    needs=Needs(run=7),
)
