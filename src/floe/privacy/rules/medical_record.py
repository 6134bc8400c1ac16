"""Medical record, patient and case numbers, named as such."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_NAMES = (
    r"(?:(?<![A-Za-z0-9])(?:MRN|PHN|EMPI|medical record|hospital|patient|health record|case file"
    r"|chart|admission|inpatient|outpatient|Fallnummer|Patientennummer|Patienten-ID|NIP)"
    r"|病历[号卡本]?|住院[号编]|门诊[号编]|就诊[号卡编]|诊疗卡|挂号|患者编号|患者号|病案号?|病人编号|检查号|化验单号?|处方号?)"
)

RULE = PatternRule(
    name="medical_record",
    needs=Needs(
        digits=5,
        cues=any_of(
            *("mrn", "phn", "empi", "record", "hospital", "patient", "case", "chart", "admission"),
            *("fallnummer", "nip", "病", "院", "诊", "挂号", "患者", "检查号", "化验", "处方"),
        ),
    ),
    entity="MEDICAL_RECORD_NUMBER",
    pattern=re.compile(
        rf"{_NAMES}(?:[ _-]?(?:number|num|no\.?|nr\.?|id|identifier|#|号码?|编号|号))?"
        r"\s?(?:is|was|为|是)?[:#=：]?\s?#?"
        r"(?P<value>[A-Za-z]{0,4}-?[0-9]{2,4}(?:[-/ ]?[0-9]{2,6}){1,3}[A-Za-z]?)(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.85,
    check=lambda value: sum(c.isdigit() for c in value) >= 5,
)
