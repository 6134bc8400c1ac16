"""Bank accounts: IBAN (ISO 13616), check by ISO 7064 mod 97, lengths of the SWIFT registry.

All admissible lengths are tried, so that a word behind the number does not spoil the check
(bug-log B07); a valid check under a country not listed counts with a lower score (B08).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.base import compact
from floe.privacy.rules.hints import Cues, Needs

_TABLE = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28
EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26
IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28
NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25
SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30
"""
_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _TABLE.split()}
_START = re.compile(r"[A-Za-z](?<![0-9A-Za-z].)[A-Za-z][0-9]{2}(?=[ .\n-]?[0-9A-Za-z])")
_LEAD = re.compile(r"[A-Za-z]{2}[0-9]{2}")
_BODY = re.compile(r"(?:[ .\n-]?[0-9A-Za-z]){11,30}")
_GROUPED = re.compile(r"[A-Z0-9]{4}(?:([ -])[A-Z0-9]{4}(?:\1[A-Z0-9]{4})*(?:\1[A-Z0-9]{1,4})?)?")
_MIN_LENGTH, _MAX_LENGTH = 15, 34


def mod97(iban: str) -> bool:
    """Whether the compact, upper case IBAN has the right check digits."""
    moved = iban[4:] + iban[:4]
    return int("".join(str(int(c, 36)) for c in moved)) % 97 == 1


_NEEDS = Needs(codes=re.compile("[A-Za-z]{2}[0-9]{2}"))


@dataclass(frozen=True, kw_only=True)
class IbanRule:
    """IBANs in one piece or in groups, upper or lower case."""

    name: str = "iban"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for match in _START.finditer(text):
            body = _BODY.match(text, match.end())
            if body is None:
                continue
            raw = text[match.start() : body.end()]
            end, score = self._known(raw) if raw[:2].upper() in _LENGTHS else self._unknown(raw)
            if score:
                start = match.start()
                yield Span(
                    entity="IBAN_CODE",
                    start=start,
                    end=start + end,
                    score=score,
                    recogniser=self.name,
                )

    def _known(self, raw: str) -> tuple[int, float]:
        end = _end_after(raw, _LENGTHS[raw[:2].upper()])
        if end and _at_boundary(raw, end) and mod97(compact(raw[:end])):
            return end, 0.95
        return 0, 0.0

    def _unknown(self, raw: str) -> tuple[int, float]:
        """Without a length to hold on to, ask for upper case, regular groups and many digits."""
        for length in range(_MAX_LENGTH, _MIN_LENGTH - 1, -1):
            end = _end_after(raw, length)
            piece = raw[:end]
            if not end or not _at_boundary(raw, end) or piece != piece.upper():
                continue
            regular = piece.isalnum() or _GROUPED.fullmatch(piece)
            many = sum(c.isdigit() for c in piece) * 2 >= length
            if regular and many and mod97(compact(piece)):
                return end, 0.6
        return 0, 0.0


def _end_after(raw: str, length: int) -> int:
    """Index behind the `length`-th letter or digit; 0 when there are fewer."""
    seen = 0
    for i, char in enumerate(raw):
        seen += char.isalnum()
        if seen == length:
            return i + 1
    return 0


def _at_boundary(raw: str, end: int) -> bool:
    return end == len(raw) or not raw[end].isalnum()


RULE = IbanRule()
