"""Organisations whose name ends in what they are. Reported below the score that counts.

`[privacy.scores] ORGANIZATION = 0.3` makes them count. Names without such an ending are not seen.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_ENDS = (
    *("Inc", "LLC", "Ltd", "PLC", "GmbH", "AG", "Corp", "Corporation", "Company", "Co", "Group"),
    *("Holdings", "Technologies", "Systems", "Solutions", "Software", "Labs", "Partners", "Sons"),
    *("Associates", "Bank", "Insurance", "University", "College", "Institute", "Hospital"),
    *("Clinic", "Foundation", "Ministry", "Agency", "Orchestra", "Museum", "Office"),
    *("Industries", "Services", "Consulting"),
)
_NAME = r"[A-Z\u00c0-\u024f](?:[0-9A-Za-z\u00c0-\u024f&]|['.-](?=[0-9A-Za-z])){0,30}"

RULE = PatternRule(
    name="organization",
    entity="ORGANIZATION",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z])(?:{_NAME},? (?:and |& |of |the )?){{1,4}}"
        rf"(?:{'|'.join(_ENDS)}|office|orchestra|insurance|hospital|university)(?![0-9A-Za-z])\.?"
    ),
    score=0.3,
    needs=Needs(cues=Cues(words=frozenset(end.lower() for end in _ENDS))),
)
FIRM = PatternRule(
    name="organization_of_names",
    entity="ORGANIZATION",
    pattern=re.compile(rf"(?<![0-9A-Za-z]){_NAME}, {_NAME} and {_NAME}"),
    score=0.3,
    needs=Needs(cues=Cues(words=frozenset(("and",)))),
)
SAID = PatternRule(
    name="organization_said",
    entity="ORGANIZATION",
    pattern=re.compile(
        r"(?<![0-9A-Za-z])(?:works? (?:at|for)|employed (?:at|by)|joined"
        r"|(?:company|firm|startup) (?:called|named)"
        r"|(?:address|headquarters|customers?|employees?) of)"
        rf" (?P<value>{_NAME}(?: {_NAME}){{0,3}})"
        rf"|(?<![0-9A-Za-z])The {_NAME}(?: {_NAME}){{0,2}} (?:office|team|building|branch|website)"
        r"(?![0-9A-Za-z])"
    ),
    score=0.3,
    needs=Needs(
        cues=Cues(
            words=frozenset(
                ("work", "works", "employed", "joined", "company", "firm", "startup", "address")
            )
            | frozenset(("headquarters", "customer", "customers", "employee", "employees"))
            | frozenset(("office", "team", "building", "branch", "website"))
        )
    ),
)
ZH = PatternRule(
    name="organization_zh",
    entity="ORGANIZATION",
    pattern=re.compile(
        r"[\u4e00-\u9fff]{2,12}(?:有限公司|集团|股份公司|医院|大学|银行|研究院|事务所|委员会)"
    ),
    score=0.3,
    needs=Needs(han=True),
)
