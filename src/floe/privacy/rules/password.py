"""Passwords and secrets given by name: `password=...`, `api_key: ...`, "my password is ..."."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_NAMES = (
    r"(?:[A-Za-z0-9]{1,20}[_-]){0,3}(?:password|passwd|passphrase|passcode|pwd|secret|api[_ -]?key"
    r"|apikey|access[_ -]?token|auth[_ -]?token|secret[_ -]?key|client[_ -]?secret|private[_ -]?key"
    r"|kennwort|passwort|contraseña|(?<![A-Za-z0-9_-])pw|密码|密碼|口令|密钥|金鑰)"
)
# Without quotes and white space; a comma or full stop at the end belongs to the sentence.
_VALUE = r"[!#-&(-~\u00c0-\u024f]{3,199}[!#-&(-+/-:<-~\u00c0-\u024f]"
_PLACEHOLDER = re.compile(
    r"[$<{%*#\[(&@].*|.*[(\[{].*|.*(?:\.{3}|…|\*{3}|x{4}).*|(?:none|null|nil|true|false|bool|str|string"
    r"|bytes|int|float|undefined|required|optional|your|my|the|self|os|env|process|config|settings"
    r"|input|redacted|changeme|example|field|type|text|hidden|and|or|is|not|here|constants|args)"
    r"(?:[-._;,)\]].*)?",
    re.IGNORECASE,
)
# A name for a secret in program text: "api_key", "client.secret", "Access-Token".
_IDENTIFIER = re.compile(
    r"[A-Za-z_.-]*(?:password|passwd|secret|key|token|credential)s?[A-Za-z_.-]*", re.IGNORECASE
)


def is_secret(value: str) -> bool:
    """Not an empty form, a type, a variable or a call."""
    bare = value.rstrip(".,;:)]}")
    return len(bare) >= 4 and not (_PLACEHOLDER.fullmatch(bare) or _IDENTIFIER.fullmatch(bare))


def is_mixed(value: str) -> bool:
    """A word that only a password could be: letters with digits or signs inside."""
    bare = value.rstrip(".!?,;:")
    return is_secret(value) and any(c.isdigit() or c in "!@#$%^&*_+=" for c in bare)


ASSIGNED = PatternRule(
    name="password_assigned",
    needs=Needs(
        cues=any_of(
            "pass",
            "pwd",
            "secret",
            "key",
            "token",
            "kennwort",
            "contrase",
            "pw",
            "密码",
            "密碼",
            "口令",
            "密钥",
            "金鑰",
        )
    ),
    entity="PASSWORD",
    pattern=re.compile(
        rf"(?<![A-Za-z0-9]){_NAMES}[\"']?\s{{0,3}}(?:[:=：]|=>|:=)\s{{0,3}}[\"']?"
        rf"(?P<value>{_VALUE})",
        re.IGNORECASE,
    ),
    score=0.8,
    check=is_secret,
    opaque_too=True,
)
SAID = PatternRule(
    name="password_said",
    needs=Needs(cues=any_of("pass", "pin", "kennwort", "密码", "密碼", "口令")),
    entity="PASSWORD",
    pattern=re.compile(
        r"(?<![A-Za-z0-9])(?:password|passcode|passphrase|pin|passwort|kennwort|密码|密碼|口令)"
        r"(?: (?:for|of|to) (?:[A-Za-z]{1,20} ?){1,4})?\s?(?:is|was|ist|es|是|为)\s{0,2}[\"']?"
        rf"(?P<value>{_VALUE})",
        re.IGNORECASE,
    ),
    score=0.75,
    check=is_mixed,
    opaque_too=True,
)
