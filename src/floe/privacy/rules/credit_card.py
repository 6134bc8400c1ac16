"""Payment cards: Luhn check digit (ISO/IEC 7812-1), issuer prefixes and lengths, usual grouping."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.base import digits_of, near, words
from floe.privacy.rules.hints import Cues, Needs

_RUN = re.compile(r"[0-9](?<![0-9A-Za-z].)(?<![0-9][.,].)(?:[ -]?[0-9]){11,120}(?![0-9A-Za-z])")
# A field of a table behind a number: "7,4111111111111111". "0,4111..." is a fraction.
_FIELD = re.compile(
    r"(?<=[0-9],)(?<![^0-9]0,)(?<!^0,)"
    r"(?:[0-9]{13,19}|[0-9]{4}([ -])[0-9]{4}(?:\1[0-9]{4}){2})(?![0-9A-Za-z.])"
)
_GROUP = re.compile(r"[0-9]+")
_SHAPES = re.compile(r"(?:4 4 4 4(?: [1-4])?|4 4 4 [1-4]|4 6 [45]|4 4 5|1(?: 1){11,18}|\d\d)")
_ISSUERS = (
    (re.compile(r"4"), {13, 16, 19}),  # Visa
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), {16}),  # Mastercard
    (re.compile(r"3[47]"), {15}),  # American Express
    (re.compile(r"30[0-5]|3095|36|3[89]"), {14, 16}),  # Diners Club
    (re.compile(r"6011|64[4-9]|65"), {16, 17, 18, 19}),  # Discover
    (re.compile(r"35(?:2[89]|[3-8])"), {16, 17, 18, 19}),  # JCB
    (re.compile(r"2131|1800"), {15}),  # JCB, old
    (re.compile(r"62|81"), {16, 17, 18, 19}),  # UnionPay
    (re.compile(r"50|5[6-8]|6304|67[56]|639"), set(range(12, 20))),  # Maestro
    (re.compile(r"220[0-4]"), {16, 17, 18, 19}),  # Mir
    (re.compile(r"60|65|82|508|353|356"), {16}),  # RuPay
)
_CONTEXT = words(
    "card", "credit", "debit", "visa", "mastercard", "amex", "cc", "pan", "discover", "jcb",
    "diners", "maestro", "unionpay", "karte", "carte", "tarjeta", "carta",
    "银行卡", "信用卡", "卡号",
)  # fmt: skip


def luhn(digits: str) -> bool:
    """Whether the last digit is the Luhn check digit of the others."""
    total = 0
    for i, char in enumerate(reversed(digits)):
        value = int(char) * (1 + i % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def is_checked(digits: str) -> bool:
    """Whether the length is a card's and the check digit is right."""
    return 12 <= len(digits) <= 19 and len(set(digits)) > 1 and luhn(digits)


def is_card(digits: str) -> bool:
    """Whether an issuer gives numbers like this one, and the check digit is right."""
    return is_checked(digits) and any(
        p.match(digits) and len(digits) in lengths for p, lengths in _ISSUERS
    )


_NEEDS = Needs(digits=12)


@dataclass(frozen=True, kw_only=True)
class CreditCardRule:
    """Tries every stretch of digit groups, so that a number beside the card does not hide it."""

    name: str = "credit_card"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for run in _RUN.finditer(text):
            groups = [m.span() for m in _GROUP.finditer(text, *run.span())]
            after = 0
            for i in range(len(groups)):
                span = self._longest(text, groups[i:]) if groups[i][0] >= after else None
                if span is not None:
                    after = span.end
                    yield span
        for field in _FIELD.finditer(text):
            if is_card(digits_of(field[0])):
                yield self._span(*field.span(), 0.9)

    def _longest(self, text: str, groups: list[tuple[int, int]]) -> Span | None:
        """The longest card that begins with the first group."""
        best, score, digits, shape = 0, 0.0, "", ""
        for start, end in groups[:19]:
            digits += text[start:end]
            shape = f"{shape} {end - start}".strip()
            if len(digits) > 19:
                break
            if not _SHAPES.fullmatch(shape) or not is_checked(digits):
                continue
            if is_card(digits):
                best, score = end, 0.95
            elif near(text, groups[0][0], end, _CONTEXT):
                best, score = end, 0.7
        if not best:
            return None
        return self._span(groups[0][0], best, score)

    def _span(self, start: int, end: int, score: float) -> Span:
        return Span(entity="CREDIT_CARD", start=start, end=end, score=score, recogniser=self.name)


RULE = CreditCardRule()
