"""API keys by the formats their providers publish for secret scanning, and JSON web tokens.

Formats: GitHub's list of secret scanning patterns and the providers' own pages (AWS IAM "Unique
identifiers", Slack "Token types", Stripe "API keys", GitLab "Token overview", Azure AD and Storage,
Twilio, SendGrid, Alibaba Cloud RAM, Tencent Cloud CAM), RFC 7519 for web tokens.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_FORMATS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS access key id
    r"gh[pousr]_[A-Za-z0-9]{36,251}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"gl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|imt|oas|ffct)-[A-Za-z0-9_.-]{20,300}",  # GitLab
    r"GR1348941[A-Za-z0-9_-]{20}",
    # OpenAI, Anthropic, OpenRouter, DeepSeek and alike
    r"sk-(?:ant-|proj-|or-|svcacct-|admin-|lf-|None-)?[A-Za-z0-9_-]{20,250}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{20,100}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,250}",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9-]{20,250}",
    r"https://hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,100}",
    r"https://(?:[a-z]{1,10}\.)?discord(?:app)?\.com/api/webhooks/[0-9]{16,20}/[A-Za-z0-9_-]{40,100}",
    r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}",  # Discord bot
    r"AIza[A-Za-z0-9_-]{35}",  # Google
    r"ya29\.[A-Za-z0-9_-]{20,500}",
    r"1//0[A-Za-z0-9_-]{30,200}",
    r"GOCSPX-[A-Za-z0-9_-]{28}",
    r"(?:hf|api_org)_[A-Za-z0-9]{30,40}",  # Hugging Face
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,500}",
    r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,64}",  # SendGrid
    r"(?:SK|AC)[0-9a-f]{32}",  # Twilio
    r"key-[0-9a-f]{32}",  # Mailgun
    r"[0-9a-f]{32}-us[0-9]{1,2}",  # Mailchimp
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",  # Telegram bot
    r"[A-Za-z0-9_~.]{3}8Q~[A-Za-z0-9_~.-]{31,34}",  # Azure AD client secret
    r"LTAI[A-Za-z0-9]{12,30}",  # Alibaba Cloud
    r"AKID[A-Za-z0-9]{16,40}",  # Tencent Cloud
    r"AKLT[A-Za-z0-9_-]{20,60}",  # Volcengine
    r"ALTAK[A-Za-z0-9-]{18,60}",  # Baidu Cloud
    r"gsk_[A-Za-z0-9]{40,60}",  # Groq
    r"xai-[A-Za-z0-9]{40,100}",
    r"pplx-[A-Za-z0-9]{40,60}",
    r"r8_[A-Za-z0-9]{37}",  # Replicate
    r"nvapi-[A-Za-z0-9_-]{40,80}",
    r"fw_[A-Za-z0-9]{22,40}",  # Fireworks
    r"dapi[0-9a-f]{32}(?:-[0-9])?",  # Databricks
    r"do[oprt]_v1_[0-9a-f]{64}",  # DigitalOcean
    r"dckr_[po]at_[A-Za-z0-9_-]{20,60}",  # Docker
    r"lin_(?:api|oauth)_[A-Za-z0-9]{32,64}",
    r"(?:ntn|secret)_[A-Za-z0-9]{40,50}",  # Notion
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,43}",  # Square
    r"gl(?:c|sa)_[A-Za-z0-9_=]{30,200}",  # Grafana
    r"hv[bsr]\.[A-Za-z0-9_-]{24,300}",  # Vault
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}",  # Terraform
    r"ATATT3[A-Za-z0-9_=-]{100,250}",  # Atlassian
    r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",  # Postman
    r"NRAK-[A-Z0-9]{27}",  # New Relic
    r"sntry[su]_[A-Za-z0-9_=+/]{40,250}",  # Sentry
    r"sbp_[0-9a-f]{40}",  # Supabase
    r"dp\.(?:pt|st|ct)\.[A-Za-z0-9_.-]{40,60}",  # Doppler
    r"pul-[0-9a-f]{40}",  # Pulumi
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",  # JWT
)


def has_digit(value: str) -> bool:
    """At least one digit, or upper and lower case: otherwise it is a phrase with hyphens."""
    return any(c.isdigit() for c in value) or (
        "-" not in value and value.lower() != value != value.upper()
    )


KEY = PatternRule(
    name="api_key",
    entity="API_KEY",
    pattern=re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_FORMATS)})(?![A-Za-z0-9])"),
    score=0.95,
    check=has_digit,
    opaque_too=True,
    needs=Needs(long=True),
)
AWS_SECRET = PatternRule(
    name="aws_secret",
    entity="API_KEY",
    pattern=re.compile(
        r"(?<![A-Za-z0-9])(?:aws_?)?secret_?(?:access_?)?key\W{1,5}(?P<value>[A-Za-z0-9/+=]{40})"
        r"(?![A-Za-z0-9/+=])",
        re.IGNORECASE,
    ),
    score=0.9,
    opaque_too=True,
    needs=Needs(long=True, cues=any_of("secret")),
)
AZURE = PatternRule(
    name="azure_key",
    entity="API_KEY",
    pattern=re.compile(
        r"(?:AccountKey|SharedAccessKey|SharedAccessSignature)\s?=\s?(?P<value>[A-Za-z0-9+/=%&?.:_-]{40,400})"
        r"|(?<![A-Za-z0-9])(?:ocp-apim-subscription-key|api-key)[\"']?\s?[:=]\s?[\"']?[0-9a-f]{32}(?![0-9a-f])",
        re.IGNORECASE,
    ),
    score=0.9,
    opaque_too=True,
    needs=Needs(
        long=True, cues=any_of("accountkey", "sharedaccess", "api-key", "subscription-key")
    ),
)
