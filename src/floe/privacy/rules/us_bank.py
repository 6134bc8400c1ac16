"""US bank accounts named as such, and ABA routing numbers with their check digit.

Routing: American Bankers Association, "Routing number policy": weights 3, 7, 1, and the first two
digits name the Federal Reserve's district.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import LEFT, RIGHT, PatternRule, digits_of, named, weighted_sum, words
from floe.privacy.rules.hints import Needs


def is_routing(value: str) -> bool:
    """Whether the check digit is right and not all the digits are the same."""
    digits = digits_of(value)
    right = weighted_sum(digits, (3, 7, 1, 3, 7, 1, 3, 7, 1)) % 10 == 0
    return right and len(set(digits)) > 1


ROUTING = PatternRule(
    name="aba_routing",
    entity="ABA_ROUTING_NUMBER",
    pattern=re.compile(
        rf"{LEFT}(?:0[0-9]|1[0-2]|2[1-9]|3[0-2]|6[1-9]|7[0-2]|80)[0-9]{{2}}(-?)[0-9]{{4}}\1[0-9]{RIGHT}"
    ),
    score=0.0,
    check=is_routing,
    context=words(
        "routing", "routing number", "aba", "rtn", "transit number", "wire transfer", "ach",
        "fedwire",
    ),
    context_score=0.95,
    needs=Needs(digits=9),
)  # fmt: skip
ACCOUNT = named(
    name="us_bank_account",
    entity="US_BANK_NUMBER",
    names=(
        "account number", "account num", "account no", "account #", "acct number", "acct no",
        "acct #", "acct.", "a/c no", "a/c number", "a/c", "bank account", "bank acct",
        "checking account", "savings account", "checking", "savings", "deposit account",
        "brokerage account", "direct deposit account", "account ending in", "accountnumber",
    ),
    value=r"[0-9](?:[ -]?[0-9]){5,16}",
    score=0.75,
    digits=6,
)  # fmt: skip
