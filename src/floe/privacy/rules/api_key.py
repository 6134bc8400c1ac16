"""API keys by the formats their providers publish for secret scanning, and JSON web tokens."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_FORMATS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}",  # AWS access key id
    r"gh[pousr]_[A-Za-z0-9]{36,251}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"glpat-[A-Za-z0-9_-]{20,64}",  # GitLab
    r"sk-(?:ant-|proj-|or-|svcacct-|lf-)?[A-Za-z0-9_-]{20,250}",  # OpenAI, Anthropic and alike
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}",  # Stripe
    r"xox[abeprs]-[A-Za-z0-9-]{10,250}",  # Slack
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,100}",
    r"AIza[A-Za-z0-9_-]{35}",  # Google
    r"ya29\.[A-Za-z0-9_-]{20,500}",
    r"GOCSPX-[A-Za-z0-9_-]{28}",
    r"hf_[A-Za-z]{34}",  # Hugging Face
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,500}",
    r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",  # Telegram bot
    r"LTAI[A-Za-z0-9]{12,30}",  # Alibaba Cloud
    r"AKID[A-Za-z0-9]{32}",  # Tencent Cloud
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",  # JWT (RFC 7519)
)

KEY = PatternRule(
    name="api_key",
    needs=Needs(long=True),
    entity="API_KEY",
    pattern=re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_FORMATS)})(?![A-Za-z0-9])"),
    score=0.95,
    check=lambda value: any(c.isdigit() for c in value) or value.startswith("hf_"),
    opaque_too=True,
)
AWS_SECRET = PatternRule(
    name="aws_secret",
    needs=Needs(long=True, cues=any_of("secret")),
    entity="API_KEY",
    pattern=re.compile(
        r"(?<![A-Za-z0-9])(?:aws_?)?secret_?(?:access_?)?key\W{1,5}(?P<value>[A-Za-z0-9/+=]{40})"
        r"(?![A-Za-z0-9/+=])",
        re.IGNORECASE,
    ),
    score=0.9,
    opaque_too=True,
)
