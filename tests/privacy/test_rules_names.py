"""Chinese names that no word announces, and text that only looks as if it held some."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.privacy.detector import RuleDetector
from floe.privacy.rules import cn_lexicon, cn_name_free, cn_surnames
from floe.privacy.rules.cn_name_free import names_in

DETECTOR = RuleDetector()

NAMED = [
    ("昨晚郭红超在群里发的链接是钓鱼网站吗？", ["郭红超"]),
    ("方英波昨天下午来门诊复查", ["方英波"]),
    ("会议由易涛主持，程静做记录。", ["易涛", "程静"]),
    ("听说隔壁的江一鸣离婚了", ["江一鸣"]),
    ("法院判决被告人熊大伟赔偿原告田小芳五万元", ["熊大伟", "田小芳"]),
    ("卢卫国、常建军、邵明三人共同出资", ["卢卫国", "常建军", "邵明"]),
    ("我儿子慕容芳在北京读小学", ["慕容芳"]),
    ("我叫歐陽修遠，是程序员", ["歐陽修遠"]),
    ("昨晚張偉強在群組裡發言", ["張偉強"]),
    ("Please help me draft an email to 孟建海 in Chinese.", ["孟建海"]),
    ("报名表：秦敏 / 188", ["秦敏"]),
    ("今天和郭\u200b红超谈了报价", ["郭\u200b红超"]),
]
NOT_NAMED = """
黄瓜炒鸡蛋怎么做？需要哪些调料？
温度传感器的采样频率应该设置为多少赫兹？
高等数学里，求极限的常用方法有洛必达法则、等价无穷小替换等。
方向盘打不动了，可能是助力转向系统出了问题。
石油价格上涨对航空公司有什么影响？
白血病的早期症状有哪些？需要做什么检查？
成都有哪些必去的景点？三天两晚怎么安排？
曾经沧海难为水，除却巫山不是云，出自哪首诗？
许多人认为咖啡可以提神，但也有研究指出过量饮用会影响睡眠。
孙子兵法里说知己知彼，百战不殆。
甘肃省位于黄河上游，地形狭长。
司机师傅说前面堵车，建议绕行。
齐白石的虾为什么画得那么好？
梁启超在《少年中国说》中表达了怎样的思想？
古代诗词鉴赏题怎么答才能拿高分？
边缘计算与云计算的主要差别体现在哪些方面？
全面推进乡村振兴，加快农业农村现代化。
华东地区今天有大到暴雨，局部地区有雷暴大风。
武汉长江大桥建成于哪一年？
严重违反公司规章制度的，用人单位可以解除劳动合同。
明天上午十点在三号会议室开会，请准时参加。
同学们请安静，现在开始上课。
请用鲁迅的风格写一段话。
钟南山院士在发布会上介绍了疫情。
张家界和黄山哪个更值得去？
What does “塞翁失马” mean in English?
拨打客服热线400-285-6009需要收费吗？
恒通汽车发布了2014年第三季度财报，营收增长15%。
关于劳动合同法第46条怎么理解？
""".strip().splitlines()


@pytest.mark.parametrize(("text", "names"), NAMED)
def test_a_name_without_an_announcement_is_found(text: str, names: list[str]) -> None:
    found = [text[s.start : s.end] for s in DETECTOR.find(text) if s.entity == "PERSON"]
    assert found == names


@pytest.mark.parametrize("text", NOT_NAMED)
def test_ordinary_chinese_gives_no_finding(text: str) -> None:
    assert [(s.entity, text[s.start : s.end]) for s in DETECTOR.find(text) if s.score >= 0.5] == []


_PARTS = st.sampled_from(
    ["昨天", "和", "张伟", "李小明", "去", "医院", "高兴", "王", "的", "欧阳", "娜", "在", "雪"]
)


def _slowest(chars: str) -> int:
    """The twin: the least cost over every way to cut, by recursion."""
    if not chars:
        return 0

    def least(i: int) -> int:
        if i == len(chars):
            return 0
        costs = []
        for n in range(1, min(4, len(chars) - i) + 1):
            word = cn_lexicon.words().get(chars[i : i + n])
            if word is not None or n == 1:
                costs.append((150 if word is None else word) + least(i + n))
        costs += [cost + least(end) for end, cost in cn_name_free._name_costs(chars, i)]
        return min(costs)

    return least(0)


@settings(deadline=None, max_examples=60)
@given(st.lists(_PARTS, min_size=1, max_size=4).map("".join))
def test_the_path_is_the_cheapest(chars: str) -> None:
    """Cost of the found names and of the words between them equals that of the slow twin."""
    names = names_in(chars)
    total, at = 0, 0
    for start, end in [*names, (len(chars), len(chars))]:
        total += _words_only(chars[at:start])
        if end > start:
            total += dict(cn_name_free._name_costs(chars, start))[end]
        at = end
    assert total == _slowest(chars)


def _words_only(chars: str) -> int:
    best = [0] + [10**6] * len(chars)
    for i in range(len(chars)):
        for n in range(1, 5):
            word = cn_lexicon.words().get(chars[i : i + n], 150 if n == 1 else 10**6)
            if i + n <= len(chars):
                best[i + n] = min(best[i + n], best[i] + word)
    return best[-1]


def test_the_tables_are_sound() -> None:
    assert len(cn_lexicon.words()) > 40_000
    assert len(cn_lexicon.given()) > 1_500
    assert all(0 < cost < 250 for cost in cn_lexicon.words().values())
    assert cn_surnames.cost("王") < cn_surnames.cost("陶") < cn_surnames.cost("甲")
    assert cn_surnames.cost("欧阳") == 50
    assert {"王", "张", "張", "欧"} <= cn_surnames.FIRST
