"""Web addresses (RFC 3986) and names of hosts behind www. Reported below the score that counts.

`[privacy.scores] URL = 0.3` makes them count.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

RULE = PatternRule(
    name="web_address",
    entity="URL",
    pattern=re.compile(
        r"(?:(?<![A-Za-z0-9])https?://|(?<![A-Za-z0-9./])www\.)"
        r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::[0-9]{1,5})?(?:/[!-;=?-~]{0,1000})?",
        re.IGNORECASE,
    ),
    score=0.3,
    needs=Needs(cues=any_of("http", "www.")),
    opaque_too=True,
)
