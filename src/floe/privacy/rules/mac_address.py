"""MAC addresses (IEEE 802 EUI-48 and EUI-64): pairs of hex digits, or groups of four."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, compact
from floe.privacy.rules.hints import Needs


def names_a_device(value: str) -> bool:
    """Neither all zeros nor the broadcast address, nor one digit repeated."""
    return len(set(compact(value))) > 1


RULE = PatternRule(
    name="mac_address",
    entity="MAC_ADDRESS",
    pattern=re.compile(
        r"[0-9A-Fa-f](?<![0-9A-Za-z:.-].)(?:[0-9A-Fa-f](?P<sep>[:-])(?:[0-9A-Fa-f]{2}(?P=sep)){4}"
        r"(?:[0-9A-Fa-f]{2}(?P=sep)){0,2}[0-9A-Fa-f]{2})"
        r"(?![0-9A-Za-z:-]|\.[0-9A-Za-z])"
    ),
    score=0.85,
    check=names_a_device,
    needs=Needs(signs=((":", 5), ("-", 5))),
)
DOTTED = PatternRule(
    name="mac_address_dotted",
    entity="MAC_ADDRESS",
    pattern=re.compile(
        r"(?<![0-9A-Za-z:.-])[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}(?![0-9A-Za-z:-]|\.[0-9A-Za-z])"
    ),
    score=0.8,
    check=names_a_device,
    needs=Needs(code=4, signs=((".", 2),)),
)
