"""Chinese numbers of patients, samples, reports and insurance, named as such: 住院号, 参保编号.

A noun, a word for "number" and the value. Nouns that other trades use as well (报告, 样本, 预约)
count only beside a medical word. Simplified and traditional.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs, any_of

_NUMBER = r"(?:[号號]碼?码?|[编編][号號码碼]|序列?[号號]|ID ?[号號]?)"
_LINK = (
    r"(?:\s?\([^()\n]{1,10}\))?\s{0,2}(?:的?[是为為]|分别是)?\s{0,2}[:=#]{0,2}\s{0,2}"
    r"[\"'“‘「『【]?"
)
_END = r"(?![0-9A-Za-z])(?![.,][0-9])(?!\s?[元块年月万亿人例名%])"
_VALUE = rf"(?P<value>[A-Z]{{0,5}}-?[0-9]{{2,20}}(?:[-/ ]?[0-9A-Z]{{1,12}}){{0,3}}){_END}"
_DATE = re.compile(r"(?:19|20)[0-9]{2}([-/ ])[0-9]{1,2}\1[0-9]{1,2}")
_CUES = any_of("号", "號", "编", "編", "id")
_NEEDS = Needs(digits=3, han=True, cues=_CUES)
_PATIENT = (
    "病历|病歷|病案|住院|入院|门诊|門診|急诊|急診|就诊|就診|就医|诊疗|診療|挂号|掛號|检查|檢查|检验|檢驗"
    "|影像|放射|超声|病理|内镜|心电|标本|標本|化验|處方|处方|医嘱|醫囑|体检|體檢|手术|手術|麻醉|输血|透析"
    "|健康档案|患者|病人|患儿|产妇|受试者|接种|出院|会诊|转诊|急救|切片|蜡块|血袋|腕带|腕帶|B超|彩超|核磁"
    "|胃镜|肠镜|(?<![A-Za-z])(?:CT|MRI?|DR)|X[光线]|心电图|出生医学证明|死亡证明|诊断证明书?"
)
_SHARED = (
    "报告|報告|样本|樣本|条码|登记|登記|预约|預約|档案|档|随访|入组|筛选"
    "|(?<![A-Za-z])(?=ID ?[号號])"
)
_INSURANCE = (
    "医保|醫保|社保|社会保[障险]|社會保[障險]|医疗保险|养老保险|失业保险|工伤保险|生育保险|参保人?员?"
    "|投保[人单]?|被保险人|保[单單]|保[险險][单單合同证]{0,2}|理赔|理賠|报案|赔案|新?农合|合作医疗|健保"
)
_MEDICAL = words(
    "患者", "病人", "医院", "醫院", "住院", "门诊", "病历", "病歷", "检验", "化验", "就诊", "诊断",
    "科室", "床号", "主治", "体检", "血", "内科", "外科", "儿科", "妇科", "CT", "MRI", "B超",
)  # fmt: skip


def is_number(value: str) -> bool:
    """At least five digits, and no date."""
    return sum(c.isdigit() for c in value) >= 5 and not _DATE.fullmatch(value)


PATIENT = PatternRule(
    name="cn_medical_record",
    entity="MEDICAL_RECORD_NUMBER",
    pattern=re.compile(
        rf"(?:{_PATIENT})(?:流水|登记|申请|单据?|病[历歷案]|卡|人|本|档案|首页|条码|片)?{_NUMBER}{_LINK}{_VALUE}",
        re.I,
    ),
    score=0.85,
    check=is_number,
    needs=_NEEDS,
)
SHARED = PatternRule(
    name="cn_medical_number",
    entity="MEDICAL_RECORD_NUMBER",
    pattern=re.compile(rf"(?:{_SHARED})(?:流水|单)?{_NUMBER}{_LINK}{_VALUE}", re.I),
    score=0.0,
    check=is_number,
    context=_MEDICAL,
    context_score=0.75,
    needs=_NEEDS,
)
INSURANCE = PatternRule(
    name="cn_insurance_number",
    entity="INSURANCE_NUMBER",
    pattern=re.compile(
        rf"(?:{_INSURANCE})(?:[卡证證]{{1,2}}|电子凭证|电脑|个人|人员|案件|合同|客户|登记)?"
        rf"(?:{_NUMBER}|[账帐賬帳][号號户戶])(?:卡号)?{_LINK}{_VALUE}",
        re.I,
    ),
    score=0.82,
    check=is_number,
    needs=Needs(
        digits=3, han=True, cues=any_of("号", "號", "编", "編", "id", "账", "帐", "賬", "帳")
    ),
)
