"""Chinese names that no word announces: 昨晚郭红超在群里发的链接.

Each stretch of Chinese characters is cut into words in the cheapest way, as word segmenters do; a
surname with one or two characters of given names competes with the words there are, and what
stands beside it makes it dearer or cheaper. A name that everybody knows is a word. Not covered:
surnames alone (老王), given names alone, names written in rare characters, foreign names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules import cn_lexicon, cn_surnames
from floe.privacy.rules.hints import Cues, Needs

# Costs in tenths of a nat, tuned on the training frames and on news and manuals in Chinese.
_NAME, _ONE_GIVEN, _TWO_GIVEN = 30, 14, 2
_UNKNOWN, _RARE_GIVEN = 150, 140
_AT_EDGE, _CUE, _PLACE, _FIRM = -6, -12, 45, 60
_FAR = 10**6

_RUN = re.compile(r"[\u4e00-\u9fff]{2,}")
_QUOTES = "\"'“‘「『"
_LEFT = frozenset(
    "和与跟给对向请叫让找同为被把替由问帮陪按是叫员工长师友妻夫子女爸妈哥姐弟妹者人户客"
)
_RIGHT = frozenset(
    "的在是说和与把被给向对从于因昨今明前去来已将还也都就又正要想会能请先女总老同很没不上下住"
)
_TITLES = (
    "先生", "女士", "小姐", "老师", "医生", "教授", "经理", "主任", "同学",
    "律师", "总监", "书记", "院长", "校长", "博士", "护士", "师傅", "阿姨",
    "叔叔", "同志", "局长", "部长", "工程师", "太太",
)  # fmt: skip
_PLACES = frozenset(
    "路街道市县镇乡村区省州山河江湖海岛桥楼寺庙塔庄巷园城店馆站港湾沟岭峰洞泉酒茶族县"
    "国语人式派型号级类性化率度机器"
)
_FIRMS = (
    "集团", "公司", "大学", "学院", "医院", "银行", "中学", "小学", "汽车",
    "科技", "地产", "证券", "股份", "电器", "酒店", "广场", "机场", "大厦",
    "小区", "公园", "高速", "大道", "火车", "地铁", "超市", "药业", "乳业",
    "航空", "物流", "食品", "传媒", "出版", "文化", "网络", "软件", "能源",
    "保险", "基金", "品牌",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FreeNameRule:
    """Names by the cheapest way to cut a stretch of characters into words and names."""

    name: str = "cn_name_free"
    opaque_too: bool = False
    needs: Needs = Needs(han=True)  # noqa: RUF009 - frozen, so one for all is right
    cues: Cues = Cues()  # noqa: RUF009 - frozen, so one for all is right

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for run in _RUN.finditer(text):
            # Titles of works, and proverbs of four characters in quotation marks.
            before = text[run.start() - 1 : run.start()]
            if before and (before in "《〈" or (before in _QUOTES and len(run[0]) == 4)):
                continue
            chars = run[0].translate(cn_lexicon.SIMPLIFIED)
            for start, end in names_in(chars):
                yield Span(
                    entity="PERSON",
                    start=run.start() + start,
                    end=run.start() + end,
                    score=0.65,
                    recogniser=self.name,
                )


def names_in(chars: str) -> list[tuple[int, int]]:
    """[start, end) of every name on the cheapest path; `chars` are simplified and Chinese only."""
    if cn_surnames.FIRST.isdisjoint(chars):
        return []
    words = cn_lexicon.words()
    n = len(chars)
    best = [0] + [_FAR] * n
    back = [(0, False)] * (n + 1)
    for i in range(n):
        for length in (1, 2, 3, 4):
            if i + length > n:
                break
            known = words.get(chars[i : i + length])
            if known is None:
                if length > 1:
                    continue
                known = _UNKNOWN
            if best[i] + known < best[i + length]:
                best[i + length] = best[i] + known
                back[i + length] = (i, False)
        for end, cost in _name_costs(chars, i):
            if best[i] + cost < best[end]:
                best[end] = best[i] + cost
                back[end] = (i, True)
    found = []
    while n:
        start, is_name = back[n]
        if is_name:
            found.append((start, n))
        n = start
    return found[::-1]


def _name_costs(chars: str, i: int) -> Iterator[tuple[int, int]]:
    """(end, cost) of every name that may begin at `i`; what is a word is no name."""
    given = cn_lexicon.given()
    words = cn_lexicon.words()
    for family in (1, 2):
        surname = chars[i : i + family]
        if surname not in (cn_surnames.SINGLE if family == 1 else cn_surnames.COMPOUND):
            continue
        cost = _NAME + cn_surnames.cost(surname) + _left(chars, i)
        for n_given, more in ((1, _ONE_GIVEN), (2, _TWO_GIVEN)):
            end = i + family + n_given
            if end > len(chars):
                break
            cost += given.get(chars[end - 1], _RARE_GIVEN)
            if chars[i:end] not in words:
                yield end, cost + more + _right(chars, end)


def _left(chars: str, i: int) -> int:
    if i == 0:
        return _AT_EDGE
    return _CUE if chars[i - 1] in _LEFT else 0


def _right(chars: str, end: int) -> int:
    if end == len(chars):
        return _AT_EDGE
    if chars.startswith(_TITLES, end):
        return 2 * _CUE
    if chars.startswith(_FIRMS, end):
        return _FIRM
    if chars[end] in _PLACES:
        return _PLACE
    return _CUE if chars[end] in _RIGHT else 0


RULE = FreeNameRule()
