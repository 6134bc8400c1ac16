"""A third copy of the text in which numbers cut by line ends, emoji and odd signs are whole.

Only cuts in the usual groups are mended (4-4-4-4, 3-4-4, 6-8-4, digit by digit ...), and only
behind or before a word that says what the number is, or where it is a Chinese resident id by its
check digit: columns of figures must not become cards. Only rules see this copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from floe.privacy.normalise import Normalised
from floe.privacy.rules.base import near, words
from floe.privacy.rules.cn_resident_id import is_valid

_SIGN = r"[ \t\r\n._/|*~\u00b7\u2000-\u2bff\u3000\ufe0f\U0001f000-\U0001faff-]"
_CUT = re.compile(
    rf"(?<![0-9A-Za-z])(?<![0-9][.,])[0-9]{{1,14}}(?:{_SIGN}{{1,3}}[0-9]{{1,14}}){{1,19}}"
    rf"(?:{_SIGN}{{0,3}}[Xx])?(?![0-9A-Za-z])"
)
_GROUP = re.compile(r"[0-9]+[Xx]?|[Xx]")
# A letter for each group's length: "a" is one digit, "d" four. Cards, phones, SSN, resident ids.
_SHAPES = re.compile("dddd[a-d]?|dfe|cdd|ccd|cbd|ef|fhd|fddd|fl|nd|fhca|a{9,20}")
_PLAIN = re.compile("[ -]*")
_RESIDENT_CHARS = 18
_CONTEXT = words(
    "card", "credit", "debit", "visa", "mastercard", "amex", "phone", "telephone", "tel", "call",
    "mobile", "cell", "whatsapp", "sms", "text me", "fax", "reach me", "my number", "ssn",
    "social security", "social", "telefon", "handy", "karte", "carte", "tarjeta", "téléphone",
    "teléfono", "身份证", "身份證", "身分證", "证件", "手机", "手機", "电话", "電話", "联系",
    "卡号", "银行卡", "信用卡", "号码",
)  # fmt: skip


def joined(copy: Normalised) -> Normalised | None:
    """`copy` with such numbers without what cut them; None where there is none."""
    text = copy.text
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for groups in _numbers(text):
        for start, end in [(at, groups[0][0]), *groups]:
            out.append(text[start:end])
            starts += copy.starts[start:end]
            ends += copy.ends[start:end]
        at = groups[-1][1]
    if not out:
        return None
    out.append(text[at:])
    starts += copy.starts[at:]
    ends += copy.ends[at:]
    return Normalised(text="".join(out), starts=starts, ends=ends)


def _numbers(text: str) -> Iterator[list[tuple[int, int]]]:
    """The groups of each number to be put together, by place."""
    for match in _CUT.finditer(text):
        groups = [m.span() for m in _GROUP.finditer(text, *match.span())]
        shape = "".join(chr(96 + end - start) for start, end in groups)
        for window in _SHAPES.finditer(shape):
            chosen = groups[window.start() : window.end()]
            start, end = chosen[0][0], chosen[-1][1]
            if "a" not in window[0] and _PLAIN.fullmatch(_between(text, chosen)):
                continue
            value = "".join(text[i:j] for i, j in chosen)
            resident = len(value) == _RESIDENT_CHARS and value[:17].isdigit() and is_valid(value)
            if resident or near(text, start, end, _CONTEXT):
                yield chosen


def _between(text: str, groups: list[tuple[int, int]]) -> str:
    """What stands between the groups."""
    return "".join(text[before[1] : after[0]] for before, after in pairwise(groups))
