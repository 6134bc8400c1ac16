"""Telephone numbers; the only door to the `phonenumbers` library (Google's number plans).

A bare run of digits counts only beside a context word; numbers written with a country code, an
area code or a trunk 0 in the usual groups count by themselves when a number plan knows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from floe.core.errors import Missing
from floe.privacy.base import Span
from floe.privacy.rules.base import digits_of, near, words
from floe.privacy.rules.hints import Cues, Needs

try:
    import phonenumbers
except ImportError as error:
    raise Missing(
        "the privacy gate needs phonenumbers. Install it with: pip install 'floe[serve]'"
    ) from error

REGIONS = ("US", "GB", "DE", "FR", "IT", "ES", "NL", "PL", "IN", "CN", "HK", "TW")
# Every group but the first needs a separator: optional ones would try every partition of digits.
_CANDIDATE = re.compile(
    # Boundaries behind the first character: `re` then skips quickly to it.
    r"[+(0-9](?<![0-9A-Za-z].)(?<![0-9][-.,:/_].)(?<![-=]\+.)"
    r"(?:(?<=\+)[0-9]{1,15}|(?<=\()\+?[0-9]{1,15}|(?<=[0-9])[0-9]{0,14})"
    r"(?:(?:[ .\-/]{1,2}\(?|\) ?[-./]?|\()[0-9]{1,9}){0,7}"
    r"(?:,? ?(?:x|ext\.?|分机) ?[0-9]{1,6})?(?![0-9A-Za-z]|[-.,:/_][0-9]|%)"
)
# The same in a row of a table, where a figure stands on the other side of the comma.
_IN_ROW = re.compile(
    r"(?<![0-9A-Za-z.:/_+-])"
    r"(?:1[3-9][0-9]{9}|\+[0-9]{9,15}|0[0-9]{2,4}[- ][0-9]{7,8}|\(0[0-9]{2,3}\) ?[0-9]{7,8}"
    r"|(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-. ])[2-9][0-9]{2}[-. ][0-9]{4})"
    r"(?![0-9A-Za-z%/_:-]|\.[0-9])"
)
_FIGURES = re.compile(r"[0-9.,;\s-]*")
_CONTEXT = words(
    "phone", "telephone", "tel", "tele", "call", "calls", "called", "calling", "mobile", "cell",
    "cellphone", "fax", "whatsapp", "sms", "text me", "text him", "text her", "dial", "contact",
    "hotline", "ring", "answering", "desk", "office", "voicemail",
    "phone number", "my number", "reach me", "reached", "telefon", "handy",
    "tel.", "portable", "telefono", "telefoon", "numero", "telefonu", "rufnummer", "téléphone",
    "teléfono", "móvil", "numéro", "电话", "手机", "联系", "座机", "传真", "致电",
    "热线", "電話",
    "手機", "携帯",
)  # fmt: skip
_US = re.compile(r"(?:1[-. ])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-. ])[2-9][0-9]{2}[-. ][0-9]{4}")
_TRUNK = re.compile(r"(?:\(0[1-9][0-9]{0,4}\)|\(?0[1-9][0-9]{0,4}\)?[ ./-]{1,2})[0-9].*")
_CN_MOBILE = re.compile(r"1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}")
# Chinese company hotlines, which belong to nobody (no US area code is 400).
_SERVICE = re.compile(r"400[ -]?[0-9]{3,4}[ -]?[0-9]{3,4}")
_LABEL_BEFORE = re.compile(
    r"(?<![A-Za-z])(?:tel|phone|fax|mobile|cell|desk|office|telefon|telefax|handy|whatsapp|电话|手机|传真)"
    r"(?: ?(?:no|nr|number|号码?)\.?)?\.?[:：]? ?$",
    re.IGNORECASE,
)
_LABEL_CHARS = 24
_EXTENSION = re.compile(r",? ?(?:x|ext\.?|分机) ?[0-9]{1,6}$")
_DATE = re.compile(
    r"(?:1[4-9]|2[01])[0-9]{2}([-./ ])[0-9]{1,2}\1[0-9]{1,2}.*"
    r"|[0-9]{1,2}([-./ ])[0-9]{1,2}\2(?:1[4-9]|2[01])[0-9]{2}.*"
)
_MIN_DIGITS, _MAX_DIGITS, _MIN_WITH_COUNTRY = 7, 15, 9

_NEEDS = Needs(digits=_MIN_DIGITS)


@dataclass(frozen=True, kw_only=True)
class PhoneRule:
    """Numbers valid in one of REGIONS, or anywhere with a country code."""

    name: str = "phone"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        rows = _IN_ROW.finditer(text) if "," in text else ()
        for match in chain(_CANDIDATE.finditer(text), rows):
            value = match[0]
            digits = digits_of(_EXTENSION.sub("", value))
            if match.re is _IN_ROW and value.isdigit() and _is_figures(text, match):
                continue
            if _SERVICE.fullmatch(value):
                continue
            if not _MIN_DIGITS <= len(digits) <= _MAX_DIGITS or _DATE.fullmatch(value):
                continue
            score = _score(value, digits, text, match)
            if score > 0:
                yield Span(
                    entity="PHONE_NUMBER",
                    start=match.start(),
                    end=match.end(),
                    score=score,
                    recogniser=self.name,
                )


def _is_figures(text: str, match: re.Match[str]) -> bool:
    """Whether a bare number stands in a row of nothing but figures, with no word for a phone."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    row = _FIGURES.fullmatch(text, start, end if end >= 0 else len(text))
    return row is not None and not near(text, match.start(), match.end(), _CONTEXT)


def _score(value: str, digits: str, text: str, match: re.Match[str]) -> float:
    if value.startswith(("+", "(+")):
        if _valid("+" + digits, None):
            return 0.9
        return 0.6 if len(digits) >= _MIN_WITH_COUNTRY else 0.0
    if digits.startswith("00") and _valid("+" + digits[2:], None):
        return 0.8
    if _CN_MOBILE.fullmatch(value) and _valid(digits, "CN"):
        return 0.75
    if _US.fullmatch(_EXTENSION.sub("", value)) and _valid(digits, "US"):
        return 0.75
    if _TRUNK.fullmatch(value) and any(_valid(digits, r) for r in REGIONS):
        return 0.7
    if _LABEL_BEFORE.search(text[max(0, match.start() - _LABEL_CHARS) : match.start()]):
        return 0.7
    if near(text, match.start(), match.end(), _CONTEXT):
        if _looks_written(value):
            return 0.75
        return 0.85 if any(_valid(digits, r) for r in REGIONS) else 0.0
    return 0.0


def _looks_written(value: str) -> bool:
    """Grouped like a telephone number of some country that is not listed."""
    groups = len(re.findall(r"[0-9]+", value))
    return groups >= 3 or (groups == 2 and "." not in value)


@cache
def _plan(region: str) -> re.Pattern[str]:
    """Every national number of the region, with its trunk prefix or country code before it.

    Wider than what `is_valid_number` takes, and much quicker to say no.
    """
    plan = phonenumbers.PhoneMetadata.metadata_for_region(region)
    if plan is None or plan.general_desc is None:
        raise Missing(f"phonenumbers has no number plan of {region}. Install a newer release")
    body = plan.general_desc.national_number_pattern
    return re.compile(rf"(?:0|1|00|011|{plan.country_code}|00{plan.country_code})?(?:{body})")


def _valid(number: str, region: str | None) -> bool:
    if region is not None and not _plan(region).fullmatch(number):
        return False
    try:
        parsed = phonenumbers.parse(number, region)
    except phonenumbers.NumberParseException:
        return False
    return bool(phonenumbers.is_valid_number(parsed))


RULE = PhoneRule()
