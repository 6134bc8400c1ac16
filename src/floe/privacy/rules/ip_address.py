"""IP addresses, version 4 and 6; loopback, unspecified and version strings are none."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.base import near, words
from floe.privacy.rules.hints import Cues, Needs

_V4 = re.compile(
    r"[0-9](?<![0-9A-Za-z.-].)[0-9]{0,2}\.(?:[0-9]{1,3}\.){2}[0-9]{1,3}(?![0-9A-Za-z-]|\.[0-9A-Za-z])"
)
_V6 = re.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:])")
_VERSION = words(
    "version", "ver", "v", "release", "build", "upgrade", "ec", "section", "版本", "版本号"
)
_NAMED = words(
    "ip", "address", "host", "server", "ipv4", "gateway", "dns", "ping", "ssh", "地址", "服务器"
)
_VERSION_CHARS = 16

_NEEDS = Needs(digits=2, signs=((".", 3), (":", 2)))


@dataclass(frozen=True, kw_only=True)
class IpAddressRule:
    """Addresses that name a machine."""

    name: str = "ip_address"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for match in _V4.finditer(text) if "." in text else ():
            before = max(0, match.start() - _VERSION_CHARS)
            if _VERSION.search(text, before, match.start()) or not _names_a_machine(match[0]):
                continue
            if not _like_section(match[0]) or near(text, *match.span(), _NAMED):
                yield self._span(match)
        for match in _V6.finditer(text) if text.count(":") >= 2 else ():
            if _is_distinct_v6(match[0]) and _names_a_machine(match[0]):
                yield self._span(match)

    def _span(self, match: re.Match[str]) -> Span:
        return Span(
            entity="IP_ADDRESS",
            start=match.start(),
            end=match.end(),
            score=0.8,
            recogniser=self.name,
        )


def _like_section(value: str) -> bool:
    """Small numbers only, as in "3.1.1.11" of an outline; 10.x is a private network."""
    return not value.startswith("10.") and all(int(part) <= 20 for part in value.split("."))


def _is_distinct_v6(value: str) -> bool:
    """Enough of an address not to be "a::b" of a programming language."""
    groups = [g for g in value.split(":") if g]
    return any(c.isdigit() for c in value) and (
        len(groups) >= 3 or (len(groups) > 1 and len(groups[0]) == 4)
    )


def _names_a_machine(value: str) -> bool:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    plain = address.is_loopback or address.is_unspecified or address.is_multicast
    return not plain and not value.startswith(("0.", "255."))


RULE = IpAddressRule()
