"""Accounts with Chinese and other services, named as such: 抖音号, 支付宝账号, 加v, LINE ID.

Pure letters count only where a word for "account" and a mark or "is" stand before them; otherwise
a digit or an underscore shows that it is no word.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs, any_of

_ACCOUNT = (
    r"(?:[号號]码?碼?|[账帐賬帳][号號户戶]名?|U?ID ?[号號]?|用[户戶]名|登[录錄陆]名|[昵暱][称稱])"
)
_SERVICES = (
    "微信|薇信|徽信|V信|支付[宝寶]|抖音|快手|小[红紅]书|小[红紅]書|微博|B站|哔哩哔哩|淘[宝寶]|天猫|旺旺|京东"
    "|拼多多|闲鱼|美团|钉钉|飞书|知乎|豆瓣|陌陌|探探|百度|网易|[贴貼]吧|游戏|遊戲|脸书|臉書|推特"
    "|(?<![A-Za-z])(?:LINE|Telegram|TG|WhatsApp|Instagram|Facebook|Twitter|Discord|Skype|Steam)"
)
_GENERIC = (
    r"(?:用[户戶]名|登[录錄陆]名|[账帐賬帳][号號户戶]名?|[昵暱][称稱]|[网網]名|使用者名[称稱])"
)
_IS = r"\s{0,2}(?:[:=]|[是为為叫])[\s:]{0,2}[\"'“「]?@?"
_LOOSE = r"\s{0,2}[:=]?\s{0,2}@?"
_ENDS = r"(?![0-9A-Za-z_@])(?!\.[0-9A-Za-z])(?!\s?[年月元万亿])"
_LETTERS = r"[A-Za-z][A-Za-z_-]{5,31}"
_MIXED = r"(?=[A-Za-z_-]{0,31}[0-9_])[A-Za-z0-9_-]{5,32}"
_CODE = r"(?=[0-9_-]{0,31}[A-Za-z])(?=[A-Za-z-]{0,31}[0-9_])[A-Za-z0-9_-]{5,32}"
_HAN = r"[\u4e00-\u9fff]"
_NICK = rf"(?={_HAN}{{1,20}}[0-9A-Za-z_]|[A-Za-z_]{{1,20}}{_HAN})[\u4e00-\u9fffA-Za-z0-9_-]{{3,24}}"
_FIELD = re.compile(
    r"(?:user|login|account|pass|nick)[_-]?(?:name|id|word)?|string|number|undefined|example|default"
    r"|required|optional|sha-?[0-9]{2,4}|base-?64|utf-?(?:8|16)|oauth2|telegram|whatsapp|(?:19|20)[0-9]{2}(?:[-_]?[0-9]{2}){1,2}",
    re.IGNORECASE,
)


def is_account(value: str) -> bool:
    """Not a field's name, a type or a date."""
    return _FIELD.fullmatch(value) is None


_SERVICE_CUES = Cues(
    words=frozenset(("line", "telegram", "tg", "whatsapp", "instagram", "facebook", "twitter"))
    | frozenset(("discord", "skype", "steam")),
    foreign=frozenset("信付音手书書博站哔淘猫旺京拼鱼团钉飞乎瓣陌探百网吧戏戲脸臉推"),
)

SAID = PatternRule(
    name="cn_account_said",
    entity="USER_NAME",
    pattern=re.compile(
        rf"(?:{_SERVICES})的?{_ACCOUNT}{_IS}(?P<value>{_LETTERS}|{_MIXED}|{_NICK}){_ENDS}", re.I
    ),
    score=0.75,
    check=is_account,
    needs=Needs(cues=_SERVICE_CUES),
)
BARE = PatternRule(
    name="cn_account",
    entity="USER_NAME",
    pattern=re.compile(
        rf"(?:{_SERVICES})(?:的?{_ACCOUNT}{_LOOSE}|\s{{0,2}}[:=]\s{{0,2}}@?)(?P<value>{_MIXED}){_ENDS}",
        re.I,
    ),
    score=0.75,
    check=is_account,
    needs=Needs(cues=_SERVICE_CUES),
)
GENERIC = PatternRule(
    name="cn_account_named",
    entity="USER_NAME",
    pattern=re.compile(rf"{_GENERIC}{_IS}(?P<value>{_CODE}|{_NICK}){_ENDS}", re.I),
    score=0.7,
    check=is_account,
    needs=Needs(han=True, cues=any_of("名", "号", "號", "户", "戶", "称", "稱")),
)
LOOSE = PatternRule(
    name="cn_account_bare",
    entity="USER_NAME",
    pattern=re.compile(
        rf"(?:用[户戶]名|登[录錄陆](?:名|[账帐賬帳][号號])|[账帐賬帳][号號]名?|网名|[昵暱][称稱])\s{{0,2}}"
        rf"(?P<value>(?=[A-Za-z-]{{1,31}}(?:[0-9]{{2}}|_))[A-Za-z0-9_-]{{5,32}}){_ENDS}",
        re.I,
    ),
    score=0.7,
    check=is_account,
    needs=Needs(han=True, cues=any_of("名", "号", "號", "称", "稱")),
)
BEHIND = PatternRule(
    name="cn_account_behind",
    entity="USER_NAME",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z_@./-])(?P<value>{_CODE})\s?就?是(?:我|他|她|我们|本人)的?"
        rf"(?:{_SERVICES}|QQ|[账帐賬帳][号號]|用户名)",
        re.I,
    ),
    score=0.7,
    check=is_account,
    needs=Needs(han=True, cues=any_of("是")),
)
ADDED = PatternRule(
    name="cn_account_added",
    entity="USER_NAME",
    pattern=re.compile(
        rf"加(?:一?下|个)?(?:我|他|她)?的?(?:[微薇徽]信?|[vV][xX信]?|wx|[qQ]{{1,2}}){_LOOSE}"
        rf"(?P<value>{_MIXED}){_ENDS}",
        re.I,
    ),
    score=0.75,
    check=is_account,
    needs=Needs(han=True, cues=any_of("加")),
)
