"""Chinese surnames, simplified and traditional, with how common they are.

The order is that of the Ministry of Public Security's count of names (2020 report, the first
hundred), then of the Hundred Family Surnames.
"""

from __future__ import annotations

from functools import cache

COMPOUND = frozenset(
    [
        "欧阳",
        "歐陽",
        "上官",
        "司马",
        "司馬",
        "诸葛",
        "諸葛",
        "司徒",
        "尉迟",
        "皇甫",
        "令狐",
        "慕容",
        "夏侯",
        "公孙",
        "公孫",
        "宇文",
        "长孙",
        "轩辕",
        "端木",
        "南宫",
        "独孤",
        "东方",
        "西门",
        "百里",
        "呼延",
        "澹台",
        "申屠",
        "太史",
        "闻人",
        "钟离",
        "濮阳",
        "淳于",
        "单于",
        "拓跋",
        "完颜",
        "纳兰",
        "赫连",
    ]
)
# By rank: the first thirty make up half of all people.
_RANKED = (
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛"
    "叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔"
    "贺赖龚文庞樊兰殷施陶洪翟安颜倪严牛温芦季俞章鲁葛伍韦申尤毕聂焦向柳邢路岳齐梅莫庄辛管祝左涂谷祁"
    "时舒耿牟卜詹关苗凌费纪靳盛童欧甄项曲成游阳裴席卫查屈鲍位覃霍翁隋植甘景薄单包司柏宁柯阮桂闵解强"
    "肖闫付代覃梅车房冉岑冷丛娄窦冀米池滕奚蒲楚古连幸栾巩仇桑臧计蔺喻褚谌商练占佟厉明闻苑党宫鞠麦敖匡"
    "闪庾桓邬缪艾腾戚储仝晏郁谈卓饶刁瞿应胥华尚鄢郎咸封籍束湛晁荆邸楼冼庹禹荀姬晋边"
)
_TRADITIONAL = (
    "張劉陳楊趙黃吳孫馬羅鄭謝韓馮蕭鄧許呂蘇盧蔣賈葉閻鍾譚鄒陸顧龍萬錢湯喬賀賴龔龐蘭顏嚴蘆魯韋畢聶齊莊關"
    "費紀項衛闕單寧鮑闵應連賓車馮塗紀樓"
)
SINGLE = frozenset(_RANKED + _TRADITIONAL)
FIRST = SINGLE | {name[0] for name in COMPOUND}
"""What a name begins with."""
_MOST_COMMON, _COMMON = 30, 100


@cache
def cost(surname: str) -> int:
    """-ln of the share of people with this surname, in tenths: 25 to 65."""
    if len(surname) > 1:
        return 50
    rank = _RANKED.find(surname)
    if rank < 0:
        return 45 if surname in SINGLE else 100
    return 32 if rank < _MOST_COMMON else 48 if rank < _COMMON else 60
