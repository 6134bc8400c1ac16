"""Random Chinese values in their public formats, check digits included. No real persons.

Formats: GB 11643-1999 (resident id), GB 32100-2015 (unified social credit code), ISO/IEC 7812
(cards), GA 36-2018 (plates), Hong Kong identity card and Taiwan national id check digits.
`train` and `test` draw given names, roads and cities from pools that share nothing.
"""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Callable
from dataclasses import dataclass

_SURNAMES = (
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛"
    "叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔"
)
_COMPOUND = ("欧阳", "上官", "司马", "诸葛", "慕容", "皇甫")
_PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青川宁琼"
_USCC = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_UPPER = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_ALNUM = string.ascii_letters + string.digits
_MOBILE = (
    "135",
    "136",
    "138",
    "139",
    "150",
    "152",
    "158",
    "176",
    "177",
    "186",
    "188",
    "189",
    "199",
)
_TW_LETTERS = "ABCDEFGHJKLMNPQRSTUVXYWZIO"


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Words that values are made of."""

    given: str
    cities: tuple[tuple[str, str, str], ...]  # city, district, first six digits of an id
    roads: tuple[str, ...]
    estates: tuple[str, ...]
    companies: tuple[str, ...]
    historic: tuple[str, ...]
    latin: tuple[str, ...]


TRAIN = Pools(
    given="伟芳娜敏静丽强磊洋艳勇军杰娟涛超霞平刚桂英华玉萍红建国志明秀珍海燕波宁福生",
    cities=(
        ("北京市", "朝阳区", "110105"), ("上海市", "浦东新区", "310115"),
        ("广东省广州市", "天河区", "440106"), ("浙江省杭州市", "西湖区", "330106"),
        ("四川省成都市", "武侯区", "510107"), ("湖北省武汉市", "洪山区", "420111"),
        ("江苏省南京市", "鼓楼区", "320106"), ("陕西省西安市", "雁塔区", "610113"),
    ),
    roads=("建国路", "人民大道", "中山北路", "解放路", "文三路", "天府大道", "珞瑜路", "长乐路"),
    estates=("阳光花园", "翠湖小区", "金色家园", "东方明珠公寓", "绿地新村"),
    companies=("华远科技", "蓝海集团", "中原银行", "远东航空", "新希望乳业", "恒通汽车"),
    historic=("李白", "苏轼", "司马迁", "曹操", "孙中山", "王羲之", "白居易", "林则徐"),
    latin=("liwei", "zhang.min", "chenjie", "wang_lei", "sunny.zhao", "huangyan"),
)  # fmt: skip
TEST = Pools(
    given="子轩梓涵雨桐欣怡浩然思远佳琪晨曦俊豪诗雅博文嘉宜若彤天宇可馨泽楷羽墨昕",
    cities=(
        ("天津市", "南开区", "120104"), ("重庆市", "渝中区", "500103"),
        ("广东省深圳市", "南山区", "440305"), ("福建省厦门市", "思明区", "350203"),
        ("山东省青岛市", "市南区", "370202"), ("湖南省长沙市", "岳麓区", "430104"),
        ("辽宁省大连市", "中山区", "210202"), ("云南省昆明市", "五华区", "530102"),
    ),
    roads=("科技南路", "鹭江道", "香港中路", "麓山南路", "民权路", "人民西路", "白堤路", "学府街"),
    estates=("锦绣山庄", "海韵苑", "万科城市花园", "紫荆公寓", "桃源社区"),
    companies=("星辰软件", "长风电子", "南岭证券", "白鹭物流", "九州医药", "凌云重工"),
    historic=("杜甫", "李清照", "屈原", "诸葛亮", "鲁迅", "颜真卿", "陶渊明", "岳飞"),
    latin=("xiaoyu.lin", "hepeng", "deng_jia", "qiuyue", "tony.guo", "luoxin"),
)  # fmt: skip


def _digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(n))


def name(rng: random.Random, pools: Pools) -> str:
    """A surname, sometimes of two characters, and one or two characters more."""
    surname = rng.choice(_COMPOUND) if rng.random() < 0.05 else rng.choice(_SURNAMES)
    return surname + "".join(rng.sample(pools.given, 2 if rng.random() < 0.75 else 1))


def resident_id(rng: random.Random, pools: Pools) -> str:
    """GB 11643-1999: region, birth, sequence and an ISO 7064 mod 11-2 check character."""
    body = rng.choice(pools.cities)[2] + f"{_birth(rng):%Y%m%d}" + _digits(rng, 3)
    weighted = sum(int(d) * (1 << (17 - i)) for i, d in enumerate(body))
    return body + "10X98765432"[weighted % 11]


def mobile(rng: random.Random, _: Pools) -> str:
    """Eleven digits, bare, grouped or with the country code."""
    number = rng.choice(_MOBILE)
    number += _digits(rng, 8)
    grouped = (number[:3], number[3:7], number[7:])
    forms = (number, number, number, " ".join(grouped), "-".join(grouped), f"+86 {number}")
    return rng.choice(forms)


def landline(rng: random.Random, _: Pools) -> str:
    """Area code and eight or seven digits."""
    area = rng.choice(("010", "021", "0755", "0571", "028", "0592", "0431"))
    number = rng.choice("5678") + _digits(rng, 7 if area != "0431" or rng.random() < 0.5 else 6)
    return rng.choice((f"{area}-{number}", f"({area}){number}", f"{area} {number}"))


def bank_card(rng: random.Random, _: Pools) -> str:
    """UnionPay: 62, sixteen or nineteen digits, Luhn; bare or in groups of four."""
    body = "62" + _digits(rng, rng.choice((13, 16)))
    doubled = (int(d) * (2 - i % 2) for i, d in enumerate(reversed(body)))
    body += str(-sum(n - 9 if n > 9 else n for n in doubled) % 10)
    groups = " ".join(body[i : i + 4] for i in range(0, len(body), 4))
    return rng.choice((body, body, groups))


def passport(rng: random.Random, _: Pools) -> str:
    """E and eight digits, E with a letter and seven, or the older G."""
    return rng.choice(
        (
            "E" + _digits(rng, 8),
            f"E{rng.choice('ABCDEFGHJK')}{_digits(rng, 7)}",
            "G" + _digits(rng, 8),
        )
    )


def plate(rng: random.Random, _: Pools) -> str:
    """GA 36-2018: a usual plate or a green one."""
    head = rng.choice(_PROVINCES) + rng.choice("ABCDEFGHJ")
    usual = rng.choice(_UPPER) + _digits(rng, 4)
    rest = rng.choice((_digits(rng, 5), usual, rng.choice("DF") + _digits(rng, 5)))
    return head + rng.choice(("", "·")) + rest


def credit_code(rng: random.Random, pools: Pools) -> str:
    """GB 32100-2015: eighteen characters, the last by modulus 31."""
    body = "91" + rng.choice(pools.cities)[2] + "".join(rng.choice(_USCC) for _ in range(9))
    total = sum(_USCC.index(c) * pow(3, i, 31) for i, c in enumerate(body))
    return body + _USCC[-total % 31]


def address(rng: random.Random, pools: Pools) -> str:
    """City, district, road and number, mostly with estate, building and room."""
    city, district, _ = rng.choice(pools.cities)
    road = f"{rng.choice(pools.roads)}{rng.randint(1, 999)}号"
    building = f"{rng.randint(1, 30)}号楼{rng.randint(1, 4)}单元{rng.randint(101, 2808)}室"
    short = f"{rng.randint(1, 18)}栋{rng.randint(101, 1909)}"
    tail = rng.choice(("", rng.choice(pools.estates) + building, rng.choice(pools.estates) + short))
    return rng.choice((city + district, city + district, district)) + road + tail


def hk_id(rng: random.Random, _: Pools) -> str:
    """A letter, six digits and the check digit in brackets."""
    letter, body = rng.choice("ABCDEGHKMPRVYZ"), _digits(rng, 6)
    total = 9 * 36 + 8 * (ord(letter) - 55) + sum((7 - i) * int(d) for i, d in enumerate(body))
    return f"{letter}{body}({'0123456789A'[-total % 11]})"


def tw_id(rng: random.Random, _: Pools) -> str:
    """A letter and nine digits, the last a check digit."""
    letter, body = rng.choice(_TW_LETTERS), rng.choice("12") + _digits(rng, 7)
    number = _TW_LETTERS.index(letter) + 10
    total = number // 10 + 9 * (number % 10) + sum((8 - i) * int(d) for i, d in enumerate(body))
    return f"{letter}{body}{-total % 10}"


def email(rng: random.Random, pools: Pools) -> str:
    """An address at a mail provider or a company."""
    host = rng.choice(("qq.com", "163.com", "126.com", "example.com.cn", "gmail.com"))
    return f"{rng.choice(pools.latin)}{rng.randint(1, 9999)}@{host}"


def wechat(rng: random.Random, pools: Pools) -> str:
    """A chosen WeChat name or one that begins with wxid_."""
    random_id = "wxid_" + "".join(
        rng.choice(string.ascii_lowercase + "0123456789") for _ in range(14)
    )
    return rng.choice(
        (random_id, f"{rng.choice(pools.latin).replace('.', '_')}{rng.randint(10, 9999)}")
    )


def api_key(rng: random.Random, _: Pools) -> str:
    """A key in the format of a provider."""
    prefix, n = rng.choice((("sk-", 48), ("ghp_", 36), ("AKIA", 16), ("LTAI5t", 18), ("hf_", 34)))
    letters = string.ascii_uppercase + "234567" if prefix == "AKIA" else _ALNUM
    return prefix + "".join(rng.choice(letters) for _ in range(n))


def _hk_phone(rng: random.Random, _: Pools) -> str:
    return f"+852 {rng.choice('569')}{_digits(rng, 3)} {_digits(rng, 4)}"


def _tw_phone(rng: random.Random, _: Pools) -> str:
    return f"09{_digits(rng, 2)}-{_digits(rng, 3)}-{_digits(rng, 3)}"


def _birth(rng: random.Random) -> datetime.date:
    return datetime.date(1945, 1, 1) + datetime.timedelta(days=rng.randrange(24000))


def birth(rng: random.Random, _: Pools) -> str:
    """A day in Chinese or in figures."""
    day = _birth(rng)
    y, m, d = day.year, day.month, day.day
    return rng.choice((f"{y}年{m}月{d}日", f"{day:%Y-%m-%d}", f"{y}/{m}/{d}", f"{y}.{m}.{d}"))


def _insurance(rng: random.Random, _: Pools) -> str:
    return rng.choice((_digits(rng, 10), rng.choice(_UPPER) + _digits(rng, 8), _digits(rng, 12)))


def _record(rng: random.Random, _: Pools) -> str:
    return rng.choice((_digits(rng, 8), "ZY" + _digits(rng, 8), "M" + _digits(rng, 7)))


PRIVATE: dict[str, tuple[str, Callable[[random.Random, Pools], str]]] = {
    "name": ("PERSON", name),
    "name2": ("PERSON", name),
    "id18": ("CN_RESIDENT_ID", resident_id),
    "mobile": ("PHONE_NUMBER", mobile),
    "landline": ("PHONE_NUMBER", landline),
    "hkphone": ("PHONE_NUMBER", _hk_phone),
    "twphone": ("PHONE_NUMBER", _tw_phone),
    "bankcard": ("CREDIT_CARD", bank_card),
    "passport": ("PASSPORT", passport),
    "plate": ("LICENSE_PLATE", plate),
    "uscc": ("CN_CREDIT_CODE", credit_code),
    "address": ("STREET_ADDRESS", address),
    "hkid": ("HK_ID", hk_id),
    "twid": ("TW_ID", tw_id),
    "homepass": ("PASSPORT", lambda r, _: r.choice("HM") + _digits(r, 8)),
    "homepass8": ("PASSPORT", lambda r, _: _digits(r, 8)),
    "email": ("EMAIL_ADDRESS", email),
    "wechat": ("ACCOUNT_NAME", wechat),
    "qq": ("ACCOUNT_NAME", lambda r, _: str(r.randrange(10**5, 10**10))),
    "apikey": ("API_KEY", api_key),
    "dob": ("DATE_OF_BIRTH", birth),
    "insurance": ("INSURANCE_NUMBER", _insurance),
    "mrn": ("MEDICAL_RECORD_NUMBER", _record),
}  # fmt: skip
"""What is private, by the slot in a frame: its entity and how it is made."""


def _version(rng: random.Random, _: Pools) -> str:
    return ".".join(str(rng.randrange(30)) for _ in range(3))


def _isbn(rng: random.Random, _: Pools) -> str:
    body = "9787" + _digits(rng, 8)
    check = -sum(int(d) * (1 + 2 * (i % 2)) for i, d in enumerate(body)) % 10
    return f"{body[:3]}-7-{body[4:7]}-{body[7:]}-{check}"


def _hex(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("0123456789abcdef") for _ in range(n))


PUBLIC: dict[str, Callable[[random.Random, Pools], str]] = {
    "surname": lambda r, _: r.choice(_SURNAMES),
    "company": lambda r, p: r.choice(p.companies),
    "city": lambda r, p: r.choice(p.cities)[0].rpartition("省")[2].removesuffix("市"),
    "historic": lambda r, p: r.choice(p.historic[: len(p.historic) // 2]),
    "historic2": lambda r, p: r.choice(p.historic[len(p.historic) // 2 :]),
    "order": lambda r, _: f"20{r.randrange(20, 27)}{r.randrange(1, 13):02}{_digits(r, 10)}",
    "tracking": lambda r, _: r.choice(("SF", "YT", "JD", "ZTO")) + _digits(r, 12),
    "invoice": lambda r, _: "0" + _digits(r, 11),
    "date": lambda r, _: f"{r.randrange(2018, 2027)}年{r.randrange(1, 13)}月{r.randrange(1, 29)}日",
    "time": lambda r, _: f"{r.randrange(24)}:{r.randrange(60):02}",
    "year": lambda r, _: str(r.randrange(1990, 2027)),
    "price": lambda r, _: str(r.choice((r.randrange(9, 999), r.randrange(1000, 19999)))),
    "hotline": lambda r, _: r.choice(
        ("10086", "12345", "95588", "12315", f"400-{_digits(r, 3)}-{_digits(r, 4)}")
    ),
    "version": _version,
    "train": lambda r, _: r.choice("GDK") + str(r.randrange(1, 9000)),
    "model": lambda r, _: (
        f"{''.join(r.sample(_UPPER, 2))}-{r.randrange(100, 9999)}{r.choice(_UPPER)}"
    ),
    "stock": lambda r, _: r.choice(("600", "000", "300")) + _digits(r, 3),
    "flight": lambda r, _: r.choice(("CA", "MU", "CZ", "HU")) + str(r.randrange(1000, 9999)),
    "isbn": _isbn,
    "errcode": lambda r, _: r.choice((f"0x8{_hex(r, 7).upper()}", f"E{_digits(r, 4)}")),
    "sha": lambda r, _: _hex(r, 64),
    "md5": lambda r, _: _hex(r, 32),
    "uuid": lambda r, _: "-".join(_hex(r, n) for n in (8, 4, 4, 4, 12)),
    "n": lambda r, _: str(r.randrange(2, 98)),
    "d": lambda r, _: str(r.randrange(1, 7)),
}
"""What is not private, by the slot in a frame."""
