"""Dates of birth: a whole date right behind words that say so."""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_MONTH = (
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mär|mai|okt|dez|janv|févr|avr|juin|juil|août"
    r"|déc|ene|abr|ago|dic|gen|mag|giu|lug|set|ott)[a-zéûä]{0,8}\.?"
)
_DATE = (
    r"(?:[0-9]{1,2}[-/. ][0-9]{1,2}[-/. ](?:[0-9]{4}|[0-9]{2})"
    r"|(?:19|20)[0-9]{2}[-/.][0-9]{1,2}[-/.][0-9]{1,2}"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th|\.)? ?(?:of |de )?{_MONTH},? ?(?:de )?(?:19|20)[0-9]{{2}}"
    rf"|[0-9]{{1,2}} ?{_MONTH},? ?'?[0-9]{{2}}(?![0-9])"
    rf"|{_MONTH} ?[0-9]{{1,2}}(?:st|nd|rd|th)?,? ?(?:19|20)[0-9]{{2}}"
    r"|(?:19|20)[0-9]{2} ?年 ?[0-9]{1,2} ?月 ?[0-9]{1,2} ?[日号]?|(?:19|20)[0-9]{6})"
)
_NAMES = (
    r"(?:(?<![A-Za-z0-9])(?:d\.?o\.?b\.?|date of birth|birth ?date|birth ?day|born(?: on)?"
    r"|geboren(?: am)?|geburtsdatum|né(?:e)? le|date de naissance|fecha de nacimiento"
    r"|nacid[oa] el|data di nascita|nat[oa] il|geboortedatum|data urodzenia)(?![A-Za-z])"
    r"|出生日期|出生年月日?|生日|出生于|生于)"
)

BEHIND = PatternRule(
    name="date_of_birth_behind",
    entity="DATE_OF_BIRTH",
    pattern=re.compile(
        r"(?:19|20)[0-9]{2} ?[年./-] ?[0-9]{1,2} ?[月./-] ?[0-9]{1,2} ?[日号]?"
        r"(?=\s?(?:出生|生(?![产效日活成])|生日|生人|诞生))"
    ),
    score=0.8,
    needs=Needs(digits=4, cues=any_of("生")),
)
RULE = PatternRule(
    name="date_of_birth",
    needs=Needs(
        cues=any_of(
            "birth",
            "born",
            "dob",
            "d.o",
            "do.b",
            "gebor",
            "geburt",
            "né",
            "naissance",
            "nacimiento",
            "nacid",
            "nascita",
            "nat",
            "geboorte",
            "urodzenia",
            "生",
        )
    ),
    entity="DATE_OF_BIRTH",
    pattern=re.compile(
        rf"{_NAMES}[\s:：=\"',-]{{0,4}}(?:is |was |on |的?是|为)?[\s\"']{{0,2}}"
        rf"(?P<value>{_DATE})(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.85,
)
