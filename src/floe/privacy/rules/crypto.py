"""Crypto addresses: Bitcoin (Base58Check, Bech32 and Bech32m of BIP 173 and 350), Ethereum."""

from __future__ import annotations

import hashlib
import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_CONSTANTS = (1, 0x2BC830A3)


def is_base58check(value: str) -> bool:
    """Whether the last four bytes are the double sha256 of the others."""
    number = 0
    for char in value:
        number = number * 58 + _BASE58.index(char)
    try:
        data = number.to_bytes(25, "big")
    except OverflowError:
        return False
    return hashlib.sha256(hashlib.sha256(data[:21]).digest()).digest()[:4] == data[21:]


def is_bech32(value: str) -> bool:
    """Whether the last six characters check the others."""
    human, _, data = value.lower().partition("1")
    values = [ord(c) >> 5 for c in human] + [0] + [ord(c) & 31 for c in human]
    check = 1
    for v in values + [_BECH32.index(c) for c in data]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ v
        for i in range(5):
            check ^= _GENERATOR[i] if top >> i & 1 else 0
    return check in _BECH32_CONSTANTS


BASE58 = PatternRule(
    name="crypto_bitcoin",
    needs=Needs(long=True),
    entity="CRYPTO",
    pattern=re.compile(rf"(?<![0-9A-Za-z])[13][{_BASE58}]{{25,34}}(?![0-9A-Za-z])"),
    score=0.95,
    check=is_base58check,
    opaque_too=True,
)
BECH32 = PatternRule(
    name="crypto_bech32",
    needs=Needs(cues=any_of("bc1")),
    entity="CRYPTO",
    pattern=re.compile(rf"(?<![0-9A-Za-z])bc1[{_BECH32}]{{11,71}}(?![0-9A-Za-z])", re.IGNORECASE),
    score=0.95,
    check=is_bech32,
    opaque_too=True,
)
ETHEREUM = PatternRule(
    name="crypto_ethereum",
    needs=Needs(long=True, cues=any_of("0x")),
    entity="CRYPTO",
    pattern=re.compile(r"(?<![0-9A-Za-z])0x[0-9A-Fa-f]{40}(?![0-9A-Za-z])"),
    score=0.7,
    opaque_too=True,
)
