"""Number plates of mainland China (GA 36-2018): 京A12345, new energy 京AD12345, 粤Z1234港.

Also police (京A1234警), embassies (使014578, 沪A0123领), learners and trailers, and armed police
(WJ京12345). Not covered: military plates, and plates of Hong Kong, Macao and Taiwan.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs, any_of

_PROVINCE = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_C = "[A-HJ-NP-Z0-9]"


def has_digits(value: str) -> bool:
    """At least two digits: otherwise it may be a word or a code."""
    return sum(c in "0123456789" for c in value) >= 2


RULE = PatternRule(
    name="cn_plate",
    needs=Needs(digits=2, han=True),
    entity="LICENSE_PLATE",
    pattern=re.compile(
        rf"(?<![全最更])[{_PROVINCE}]\s?[A-HJ-NP-Z]\s?[·•・.-]?\s?"
        rf"(?:[A-HJK]{_C}[0-9]{{4}}|[0-9]{{5}}[A-HJK]|{_C}{{4}}(?:{_C}|[挂学警港澳领試试]))"
        r"(?![0-9A-Za-z])"
    ),
    score=0.8,
    check=has_digits,
)
SPECIAL = PatternRule(
    name="cn_plate_special",
    entity="LICENSE_PLATE",
    pattern=re.compile(
        r"(?<![天大公行促即驱])使[0-9]{6}(?![0-9A-Za-z]|次|用|条)"
        rf"|(?<![0-9A-Za-z])WJ[·• ]?[{_PROVINCE}]"
        r"[·• ]?[0-9]{4}[0-9A-Z](?![0-9A-Za-z])"
    ),
    score=0.75,
    needs=Needs(digits=4, cues=any_of("使", "wj")),
)
LOWER = PatternRule(
    name="cn_plate_named",
    needs=Needs(digits=2, han=True),
    entity="LICENSE_PLATE",
    pattern=re.compile(
        rf"[{_PROVINCE}]\s?[A-HJ-NP-Z]\s?[·•・.-]?\s?{_C}{{5,6}}(?![0-9A-Za-z])", re.IGNORECASE
    ),
    score=0.0,
    check=has_digits,
    context=words("车牌", "車牌", "牌照", "车号", "license plate", "number plate", "plate"),
    context_score=0.75,
)
