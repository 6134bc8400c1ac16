"""Private values that nobody has: made from a seed, with the check digits that real ones have."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

_FIRST = (
    *("Wilhelmina", "Bartholomew", "Anneliese", "Mackenzie", "Guinevere", "Thaddeus"),
    *("Rosalinda", "Frederick", "Josephine", "Cornelius", "Evangeline", "Maximilian"),
)
_LAST = (
    *("Okonkwo", "Featherstone", "Kowalczyk", "Abernathy", "Lindqvist", "Castellanos"),
    *("Vandermeer", "Blankenship", "Rosenberg", "Montgomery", "Hallstrom", "Pemberton"),
)
_SURNAMES = "王李张刘陈杨赵黄周吴徐孙胡朱郭罗梁宋"
_GIVEN = "伟芳娜敏静丽强磊洋艳勇军杰娟涛超霞平刚桂英华玉兰红梅晶鑫淼"
_ROADS = ("人民", "建国", "解放", "中山", "和平", "新华", "文化", "胜利")
_PLACES = ("北京市朝阳区", "上海市静安区", "广州市天河区", "成都市武侯区", "杭州市西湖区")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def _digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(n))


def _name(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def _name_zh(rng: random.Random) -> str:
    return rng.choice(_SURNAMES) + "".join(rng.sample(_GIVEN, 2))


def _address_zh(rng: random.Random) -> str:
    return f"{rng.choice(_PLACES)}{rng.choice(_ROADS)}路{rng.randint(11, 999)}号"


def _email(rng: random.Random) -> str:
    letters = "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(6))
    return f"{letters}@{rng.choice('bcdfgh')}{_digits(rng, 3)}mail.example"


def _phone(rng: random.Random) -> str:
    return f"+1 415 {rng.randint(220, 999)} {_digits(rng, 4)}"


def _mobile_zh(rng: random.Random) -> str:
    return f"1{rng.choice(('38', '39', '86', '59'))}{_digits(rng, 8)}"


def _luhn(body: str) -> str:
    total = 0
    for n, char in enumerate(reversed(body)):
        digit = int(char) * (2 if n % 2 == 0 else 1)
        total += digit - 9 if digit > 9 else digit
    return body + str(-total % 10)


def _card(rng: random.Random) -> str:
    number = _luhn("4" + _digits(rng, 14))
    return " ".join(number[i : i + 4] for i in range(0, 16, 4))


def _iban(rng: random.Random) -> str:
    body = _digits(rng, 18)
    check = 98 - int(f"{body}131400") % 97  # D = 13, E = 14
    text = f"DE{check:02d}{body}"
    return " ".join(text[i : i + 4] for i in range(0, 22, 4))


def _ssn(rng: random.Random) -> str:
    return f"{rng.randint(101, 665)}-{rng.randint(11, 99)}-{rng.randint(1001, 9998)}"


def _resident_id(rng: random.Random) -> str:
    body = f"110105{rng.randint(1955, 2005)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}"
    body += f"{rng.randint(100, 999)}"
    total = sum(int(d) * w for d, w in zip(body, _ID_WEIGHTS, strict=True))
    return body + "10X98765432"[total % 11]


def _key(rng: random.Random) -> str:
    tail = "".join(rng.choice(_ALPHABET) for _ in range(33))
    return f"ghp_{_digits(rng, 3)}{tail}"


def _aws(rng: random.Random) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    return "AKIA" + "".join(rng.choice(letters) for _ in range(15)) + rng.choice("234567")


def _password(rng: random.Random) -> str:
    return f"{_digits(rng, 2)}{''.join(rng.choice(_ALPHABET) for _ in range(8))}!{_digits(rng, 2)}"


VALUES: Mapping[str, Callable[[random.Random], str]] = {
    "name": _name,
    "name_zh": _name_zh,
    "address_zh": _address_zh,
    "email": _email,
    "phone": _phone,
    "mobile_zh": _mobile_zh,
    "card": _card,
    "iban": _iban,
    "ssn": _ssn,
    "resident_id": _resident_id,
    "key": _key,
    "aws": _aws,
    "password": _password,
}
"""A value of each kind from a source of chance."""

SAYINGS: Mapping[str, tuple[str, ...]] = {
    "name": ("My name is {}.", "The patient {} was admitted today.", "Please write to {} now."),
    "name_zh": ("我叫{}，请帮我写信。", "患者姓名：{}。"),
    "address_zh": ("我住在{}，请送货。", "地址：{}。"),
    "email": ("Write to {} please.", "我的邮箱是 {} 。"),
    "phone": ("Call me on {} today.", "My phone number: {}"),
    "mobile_zh": ("我的手机号是{}。", "电话：{}，谢谢。"),
    "card": ("My card number is {} if you need it.", "Bezahlt mit {} gestern."),
    "iban": ("Send it to IBAN {} today.", "Meine IBAN: {}."),
    "ssn": ("My SSN is {} as asked.", "social security number {}"),
    "resident_id": ("我的身份证号码是{}。", "身份证：{}，请核对。"),
    "key": ("The deploy key is {} there.", "GITHUB_TOKEN={}"),
    "aws": ("aws_access_key_id = {}", "Use {} for the bucket."),
    "password": ("The password is {} for now.", "password: {}"),
}
"""How people say a value; "{}" is its place."""

BY_MODEL = frozenset({"name"})
"""Kinds that only a model or a list of names finds."""
