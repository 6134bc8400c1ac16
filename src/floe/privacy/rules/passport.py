"""Passport numbers beside the word, by the shape that each country prints.

Shapes: the Council of the EU's PRADO register and ICAO Doc 9303-3 for the German and Polish check
digits; US Department of State (nine digits, or a letter and eight digits); Ministry of Public
Security notice on the electronic passport for China (E, later EA to EZ without I and O).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.base import Words, near, words
from floe.privacy.rules.hints import Cues, Needs

_CANDIDATE = re.compile(
    r"(?<![0-9A-Za-z])(?<![0-9][-.,])(?=[0-9A-Za-z]{0,4}[0-9])[0-9A-Za-z]{1,3}[ -]?[0-9A-Za-z]{5,9}"
    r"(?![0-9A-Za-z])(?![-.,/][0-9])"
)
_CONTEXT = words(
    "passport", "passports", "reisepass", "reisepassnummer", "passnummer", "pass-nr", "passeport",
    "passaporto", "pasaporte", "paspoort", "paspoortnummer", "paszport", "paszportu", "护照",
    "護照", "パスポート",
)  # fmt: skip

_NEEDS = Needs(digits=1, cues=_CONTEXT.cues)


@dataclass(frozen=True, kw_only=True)
class _Country:
    entity: str
    shape: re.Pattern[str]
    hints: Words | None = None
    """Words that the country's own passport asks for; None where the shape is enough."""


_COUNTRIES = (
    _Country(
        entity="CN_PASSPORT",
        shape=re.compile(
            r"(?:E[A-HJ-NP-Z]?|[GDSPH])(?=.{7,8}$)(?:(?<=E)[0-9]{8}|(?<!E)[0-9]{7,8})"
        ),
        hints=words("china", "chinese", "prc", "护照", "護照"),
    ),
    _Country(
        entity="DE_PASSPORT",
        shape=re.compile(r"[CFGHJK][CFGHJKLMNPRTVWXYZ0-9]{8}[0-9]?"),
        hints=words("reisepass", "reisepassnummer", "passnummer", "pass-nr", "german", "germany"),
    ),
    _Country(entity="FR_PASSPORT", shape=re.compile(r"[0-9]{2}[A-Z]{2}[0-9]{5}")),
    _Country(
        entity="IT_PASSPORT",
        shape=re.compile(r"[A-Z]{2}[0-9]{7}"),
        hints=words("passaporto", "italian", "italy", "italiano"),
    ),
    _Country(
        entity="IN_PASSPORT",
        shape=re.compile(r"[A-PR-WY][1-9][0-9]{6}"),
        hints=words("india", "indian", "passport"),
    ),
    _Country(
        entity="UK_PASSPORT",
        shape=re.compile(r"[0-9]{9}"),
        hints=words("uk", "british", "gbr", "hm passport", "united kingdom", "gb"),
    ),
    _Country(
        entity="US_PASSPORT",
        shape=re.compile(r"[0-9]{9}|[A-Z][0-9]{8}"),
        hints=words("us", "usa", "american", "united states", "passport"),
    ),
)
_ANY = re.compile(r"[A-Z]{0,3}[0-9]{6,9}[A-Z]?|[A-Z]{2}[A-Z0-9]{6}[0-9]")


@dataclass(frozen=True, kw_only=True)
class PassportRule:
    """A number near the word; PASSPORT where no country's own shape and words fit."""

    name: str = "passport"
    opaque_too: bool = False
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        for match in _CANDIDATE.finditer(text):
            value = re.sub("[ -]", "", match[0]).upper()
            if sum(c.isdigit() for c in value) < 5:
                continue
            if not near(text, *match.span(), _CONTEXT):
                continue
            entity, score = _country(value, text, match)
            if score:
                yield Span(
                    entity=entity,
                    start=match.start(),
                    end=match.end(),
                    score=score,
                    recogniser=self.name,
                )


def _country(value: str, text: str, match: re.Match[str]) -> tuple[str, float]:
    for country in _COUNTRIES:
        fits = country.shape.fullmatch(value)
        if fits and (country.hints is None or near(text, *match.span(), country.hints)):
            return country.entity, 0.85
    return "PASSPORT", 0.75 if _ANY.fullmatch(value) else 0.0


RULE = PassportRule()
