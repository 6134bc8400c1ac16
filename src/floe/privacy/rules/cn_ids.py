"""Chinese numbers beside the resident id: old id, social credit code, permits, messengers.

Old id: fifteen digits with a two-digit year (before GB 11643-1999). Social credit: GB 32100-2015,
alphabet of 31 without I, O, S, V, Z, weights powers of 3 mod 31, check character 31 - sum mod 31.
"""

from __future__ import annotations

import datetime
import re

from floe.privacy.rules.base import PatternRule, named, words
from floe.privacy.rules.hints import Needs

_CREDIT = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_REGION = "(?:1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[1-3])"


def is_old_id(value: str) -> bool:
    """Whether the six middle digits are a date of the twentieth century."""
    try:
        datetime.date(1900 + int(value[6:8]), int(value[8:10]), int(value[10:12]))
    except ValueError:
        return False
    return True


def is_credit_code(value: str) -> bool:
    """Whether the last character checks the seventeen before."""
    code = value.upper()
    total = sum(_CREDIT.index(c) * pow(3, i, 31) for i, c in enumerate(code[:17]))
    return _CREDIT[-total % 31] == code[17]


OLD_ID = PatternRule(
    name="cn_old_id",
    entity="CN_RESIDENT_ID",
    pattern=re.compile(rf"(?<![0-9A-Za-z]){_REGION}[0-9]{{13}}(?![0-9A-Za-z])"),
    score=0.0,
    check=is_old_id,
    context=words("身份证", "身分證", "证件", "id card", "identity card", "resident id"),
    context_score=0.9,
    needs=Needs(run=15),
)
# People mistype: behind the word a number of that shape counts without its check digit.
NAMED_ID = named(
    name="cn_resident_id_named",
    entity="CN_RESIDENT_ID",
    names=(
        "身份证", "身分證", "身份證", "身份号码", "公民身份", "证件号", "id card", "resident id",
        "identity card", "sfz",
    ),
    value=r"[1-9][0-9]{5}[ -]?(?:18|19|20)[0-9]{2}[ -]?[0-9]{4}[ -]?[0-9]{3}[0-9X]|[1-9][0-9]{14}",
    score=0.85,
    digits=15,
)  # fmt: skip
CREDIT_CODE = PatternRule(
    name="cn_social_credit",
    entity="CN_SOCIAL_CREDIT_CODE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])[0-9A-HJ-NPQRTUWXY]{2}[0-9]{6}[0-9A-HJ-NPQRTUWXY]{10}(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.85,
    check=lambda value: not value.isdigit() and is_credit_code(value),
    needs=Needs(code=18),
)
CREDIT_CODE_DIGITS = PatternRule(
    name="cn_social_credit_named",
    entity="CN_SOCIAL_CREDIT_CODE",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])[1-9][0-9]{7}[0-9A-HJ-NPQRTUWXY]{10}(?![0-9A-Za-z])", re.I
    ),
    score=0.0,
    check=is_credit_code,
    context=words("信用代码", "信用代碼", "统一社会信用", "税号", "纳税人识别号", "credit code"),
    context_score=0.95,
    needs=Needs(run=8),
)
PERMIT = named(
    name="cn_permit",
    entity="GOVERNMENT_ID",
    names=(
        "港澳通行证", "港澳居民来往内地通行证", "回乡证", "台胞证", "台湾通行证", "通行证",
        "军官证", "士兵证", "居住证", "户口簿", "学籍", "工作证", "执业证", "执业医师证",
        "学生证", "学号", "工号", "结婚证", "准考证", "残疾证", "营业执照注册",
    ),
    value=r"[A-Z]{0,3}[0-9]{5,18}[0-9X]?",
    score=0.75,
    digits=5,
)  # fmt: skip
MESSENGER = named(
    name="cn_messenger",
    entity="USER_NAME",
    names=("微信号", "微信", "微訊", "wechat", "weixin", "wx", "vx", "威信", "薇信", "v信"),
    value=r"(?=[A-Z0-9_-]{0,19}[0-9_])[A-Z][A-Z0-9_-]{5,19}|[0-9]{6,12}",
    score=0.75,
)
QQ = named(
    name="cn_qq",
    entity="USER_NAME",
    names=("qq", "扣扣", "企鹅号", "q号"),
    value=r"[1-9][0-9]{4,11}",
    score=0.75,
    digits=5,
)
