"""URLs that carry a user's password, or a key in their query (RFC 3986 userinfo)."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

USERINFO = PatternRule(
    name="url_userinfo",
    needs=Needs(cues=any_of("://")),
    entity="URL_CREDENTIALS",
    pattern=re.compile(
        r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'<>]{0,100}:(?P<value>[^\s/@\"'<>]{1,200})@"
        r"(?=[A-Za-z0-9\[])"
    ),
    score=0.97,  # above the e-mail address that it looks like
    check=lambda value: not value.startswith(("$", "{", "<", "*")),
    opaque_too=True,
)
QUERY = PatternRule(
    name="url_query_key",
    needs=Needs(cues=any_of("token=", "key=", "secret=", "password=", "sig=", "signature=")),
    entity="URL_CREDENTIALS",
    pattern=re.compile(
        r"[?&](?:access_token|api_?key|token|secret|password|sig|signature|X-Amz-Signature)="
        r"(?P<value>[A-Za-z0-9%._~+/-]{8,500})",
        re.IGNORECASE,
    ),
    score=0.85,
    check=lambda value: any(c.isdigit() for c in value),
    opaque_too=True,
)
