"""Private keys in text form: PEM (RFC 7468), OpenSSH, PGP and PuTTY."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

RULE = PatternRule(
    name="private_key",
    needs=Needs(cues=any_of("-----begin ", "putty-user-key-file")),
    entity="PRIVATE_KEY",
    # The opening line decides: a key cut short is still a key.
    pattern=re.compile(
        r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[A-Za-z0-9+/=\s:,.-]{0,8192}?-----END [A-Z0-9 ]{0,40}-----)?"
        r"|PuTTY-User-Key-File-[23]:"
    ),
    score=1.0,
    opaque_too=True,
)
