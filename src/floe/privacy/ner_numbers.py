"""Which numbers of the model count: those that something near says what they are.

The model calls any digest, order number or uptime a licence or a tax number. The rules know the
forms; here only what stands beside a word for its kind, whole and in no machine-made run.
"""

from __future__ import annotations

import re

from floe.privacy.rules.opaque import opaque_spans

_CUES = re.compile(
    r"(?<![A-Za-z])(?:(?:my|his|her|their|your|our|national|government|state|tax|patient|employee"
    r"|member|citizen)(?:'s)?[ _-]?id|id (?:card|number|no\.?)|identity|identification|licen[cs]e"
    r"|passport|permit|visa|tax|tin|ein|itin|vat|ssn|social security|nino|nhs|nif|dni|nie|cpf|pan"
    r"|aadhaar|bsn|pesel|account|acct|a/c|iban|bank|routing|aba|sort code|bic|swift|deposit|wire"
    r"|transfer|insurance|medicare|medicaid|policy|beneficiary)(?![A-Za-z])",
    re.IGNORECASE,
)
_PHONE_CUES = re.compile(
    r"(?<![A-Za-z])(?:phone|tel|telephone|call|called|calling|mobile|cell|fax|contact|reach|sms"
    r"|texts?|messages?|whatsapp|desk|office|answering|dial|ring)(?![A-Za-z])",
    re.IGNORECASE,
)
_BEFORE_CHARS, _AFTER_CHARS = 48, 24
_ID_DIGITS = 5
_PHONE_DIGITS = range(7, 16)
_GROUPED = re.compile(r"[+(]?[0-9]{1,5}(?:[ ().-]{1,3}[0-9]{1,5}){2,6}")
_JOINED = re.compile(r"[0-9A-Za-z_]")


def is_somebodys(text: str, start: int, end: int, *, phone: bool) -> bool:
    """Whether the number at [start, end) is one of a person's, as far as can be told."""
    digits = sum(c.isdigit() for c in text[start:end])
    if not _is_whole(text, start, end):
        return False
    if any(a < end and start < b for a, b in opaque_spans(text)):
        return False
    if phone:
        return digits in _PHONE_DIGITS and (
            _GROUPED.fullmatch(text[start:end]) is not None or _near(_PHONE_CUES, text, start, end)
        )
    return digits >= _ID_DIGITS and _near(_CUES, text, start, end)


def _is_whole(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    return not (_JOINED.match(before) or _JOINED.match(after))


def _near(cues: re.Pattern[str], text: str, start: int, end: int) -> bool:
    before = text[max(0, start - _BEFORE_CHARS) : start]
    return bool(cues.search(before) or cues.search(text[end : end + _AFTER_CHARS]))
