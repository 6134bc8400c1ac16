"""Chinese addresses: a road, village or estate with its number, or what follows 住在 and 地址.

Not covered: a city or district alone, a place known by its name only (a school, a station), rural
addresses without a number, addresses in Latin letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_HAN = "\u4e00-\u9fff"
_N = "(?:[0-9A-Za-z]{1,5}(?:-[0-9]{1,4})?|[一二三四五六七八九十百零〇]{1,6})"
_UNIT = "(?:号楼|號樓|号院|號院|号|號|栋|棟|幢|座|单元|單元|层|層|楼|樓|室|弄|巷|户)"
_REST = rf"(?:\s?{_N}{_UNIT}){{0,6}}"
_ROAD = (
    "(?:(?<![线電电思网公铁走出道马套网過过])路|大街|(?<![逛上])街|街道|大道|胡同|里弄|(?<![知通频赛跑轨报味隧管车王])道"
    "|弄|巷|村|镇|鎮|屯|小区|社区|花园|新村|家园|公寓|大厦|大廈|广场|苑|园区|工业园)"
)
_SECTION = "(?:[东西南北中東]|[0-9一二三四五六七八九十]{1,3}段)?"
# A road and its number, or two numbers of a building behind one another (3号楼2单元).
_CORE = re.compile(
    rf"(?<=[{_HAN}]){_ROAD}{_SECTION}(?:\s?[0-9]{{1,4}}[巷弄])?\s?(?:{_N}(?:号[楼院]|號[樓院]|号|號|弄|栋|幢|棟|座))"
    rf"(?!线|線|口|出口|文件|机|機|台|站|选手|公路){_REST}(?:\s?[0-9]{{3,4}}(?![0-9A-Za-z.]))?"
    rf"|(?<![0-9A-Za-z第])[0-9]{{1,3}}(?:号楼|號樓|栋|棟|幢|座)\s?(?:{_N}(?:单元|單元|层|層|楼|樓|室|门)){{1,3}}"
)
_LEFT_MAX_CHARS = 40
_PART_OF_PLACE = re.compile(rf"[{_HAN}0-9]")
_STOP = "在是到址往寄送来的我他她你们去住从了来這这那有就为為"
_LEVEL = (
    "(?:特别行政区|自治区|自治州|自治县|省|市(?!场)|區|区|縣|县|镇|鎮|乡|鄉|村|旗|州|街道|大道|路(?![由径])|街|巷|胡同|弄|小区|社区|花园"
    "|家园|新村|公寓|大厦|大廈|苑)"
)

_NEEDS = Needs(han=True)


@dataclass(frozen=True, kw_only=True)
class AddressRule:
    """Starts from a numbered place and walks left over province, city and district."""

    name: str = "cn_address"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for match in _CORE.finditer(text):
            start = match.start()
            floor = max(0, start - _LEFT_MAX_CHARS)
            while start > floor and _is_part(text[start - 1]):
                start -= 1
            if match.end() - start < 4:
                continue
            yield Span(
                entity="STREET_ADDRESS",
                start=start,
                end=match.end(),
                score=0.8,
                recogniser=self.name,
            )


def _is_part(char: str) -> bool:
    return char not in _STOP and _PART_OF_PLACE.match(char) is not None


RULE = AddressRule()
# At least two levels, so that "我住在上海市" alone is none. No backtracking into a level.
SAID = PatternRule(
    name="cn_address_said",
    needs=Needs(han=True),
    entity="STREET_ADDRESS",
    pattern=re.compile(
        r"(?:住在|住于|家住|居住在|搬到|搬去|寄到|寄往|送到|送至|家在"
        r"|(?:住址|地址|户籍|籍贯)\s?(?:[:=]|是|为|為|在))\s?"
        rf"(?!社区|小区|城市|农村|省市)(?P<value>(?:(?>[{_HAN}]{{1,8}}?{_LEVEL})\s?){{2,8}}+{_REST})"
    ),
    score=0.75,
)
