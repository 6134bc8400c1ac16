"""From labelled tokens to private spans: what a name or a place is worth alone and together.

A city alone points at nobody ("the capital of France"), so it scores low; with another part of an
address it counts in full. So do names, except those of organisations ("Ellis Group") and given
names in word problems ("Natalia sold 48 clips. How many ...?") and those of the famous dead, unless
something introduces a person ("my name is", "patient", "Dr.").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.ner_famous import is_famous
from floe.privacy.ner_names import (
    Labelled,
    has_capitals,
    is_code,
    is_exercise,
    is_foreign,
    is_organisation,
    known_places,
    with_names,
)
from floe.privacy.ner_numbers import is_somebodys

_ENTITIES = {
    "EMAIL": "EMAIL_ADDRESS",
    "PHONE": "PHONE_NUMBER",
    "TAX_ID": "TAX_ID",
    "BANK_ACCOUNT": "BANK_ACCOUNT",
    "ROUTING_NUMBER": "BANK_ACCOUNT",
    "GOVERNMENT_ID": "GOVERNMENT_ID",
    "PASSPORT": "PASSPORT",
    "DRIVERS_LICENSE": "DRIVER_LICENSE",
    "GIVEN_NAME": "PERSON",
    "SURNAME": "PERSON",
    "BUILDING_NUMBER": "STREET_ADDRESS",
    "STREET_NAME": "STREET_ADDRESS",
    "SECONDARY_ADDRESS": "STREET_ADDRESS",
    "CITY": "STREET_ADDRESS",
    "STATE": "STREET_ADDRESS",
    "ZIP_CODE": "STREET_ADDRESS",
    "URL": "URL",
}
_ALONE = {"CITY": "GPE", "STATE": "GPE", "ZIP_CODE": "ZIP_CODE"}
_NUMBERS = {
    *("PHONE", "TAX_ID", "BANK_ACCOUNT", "ROUTING_NUMBER", "GOVERNMENT_ID", "PASSPORT"),
    "DRIVERS_LICENSE",
}
_PARTS = {"PERSON", "STREET_ADDRESS"}
_EXACT = {"BUILDING_NUMBER", "STREET_NAME", "SECONDARY_ADDRESS", "ZIP_CODE"}
_PLACED = {"SECONDARY_ADDRESS", "STREET_NAME"}
_WEAK = 0.4
_BETWEEN = re.compile(r"[\s,.'’-]{0,4}")
_LETTERS = re.compile(r"[^\W\d_]+")
_MIN_PLACE_CHARS = 12
_STREET = re.compile(
    r"\b(?:st|street|rd|road|ave|avenue|blvd|lane|ln|drive|dr|way|court|ct|square|apt|suite|unit|box"
    r"|floor)\b|[^\W\d_](?:stra(?:ss|ß)e|gade|gata|vej|weg|laan|straat|katu|ulica|utca)\b",
    re.IGNORECASE,
)
_INTRODUCED = re.compile(
    r"(?<![A-Za-z])(?:name(?: is|'s| was|\?)?:?|(?:i am|i'm|this is|it's) |patient:?|client:?"
    r"|customer:?|employee:?|mr\.?|mrs\.?|ms\.?|miss|dr\.?|prof\.?|dear|sincerely,?|regards,?"
    r"|signed|cardholder:?"
    r"|belongs? to|account of|address of|email of|number of|contact:?)\s{0,3}$",
    re.IGNORECASE,
)
_INTRODUCTION_CHARS = 24
_ZIP = re.compile(
    r"(?<![A-Za-z])(?:zip|zip ?code|post(?:al)? ?code|plz|cap|邮编)\W{0,4}$", re.IGNORECASE
)
_FULL_NAME = re.compile(r"[^\W\d_][\w'’-]*(?:(?<=\b\w)\.)?(?: [^\W\d_][\w.'’-]*)+")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of tokens of one kind."""

    kind: str
    score: float
    start: int
    end: int


def spans_of(
    text: str, tokens: Sequence[Labelled], *, threshold: float, recogniser: str
) -> list[Span]:
    """Private spans by start; what points at nobody alone keeps a score below one half."""
    found: list[Span] = []
    for group in _groups(text, pieces_of(text, with_names(text, tokens), threshold=threshold)):
        entity, weight = _judge(text, group)
        found.append(
            Span(
                entity=entity,
                start=group[0].start,
                end=group[-1].end,
                score=weight * sum(p.score for p in group) / len(group),
                recogniser=recogniser,
            )
        )
    return found


def pieces_of(text: str, tokens: Sequence[Labelled], *, threshold: float) -> list[Piece]:
    """Neighbouring tokens of one kind joined; a B label behind a gap begins a new piece."""
    pieces: list[Piece] = []
    for token in tokens:
        kind = token.kind
        if kind not in _ENTITIES or token.score < threshold or token.end <= token.start:
            continue
        last = pieces[-1] if pieces else None
        if _ENTITIES[kind] == "PERSON" and _is_tail(text, token, last):
            continue
        if last is not None and last.kind == kind:
            gap = text[last.end : token.start]
            if not gap or (token.label[0] == "I" and _BETWEEN.fullmatch(gap)):
                score = min(last.score, token.score)
                pieces[-1] = Piece(kind=kind, score=score, start=last.start, end=token.end)
                continue
        pieces.append(Piece(kind=kind, score=token.score, start=token.start, end=token.end))
    return pieces


def _is_tail(text: str, token: Labelled, last: Piece | None) -> bool:
    """A word in lower case behind a capitalised name, or the rest of one: "Schwarz flew"."""
    if last is not None and last.end == token.start:
        return False
    if token.start and text[token.start - 1].isalnum() and text[token.start].islower():
        return True
    follows = last is not None and _BETWEEN.fullmatch(text[last.end : token.start]) is not None
    return (
        follows and text[token.start].islower() and last is not None and text[last.start].isupper()
    )


def _groups(text: str, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Parts of one name or one address together, every other piece alone."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups:
            last = groups[-1][-1]
            same = _ENTITIES[last.kind] == _ENTITIES[piece.kind]
            if (
                same
                and _ENTITIES[piece.kind] in _PARTS
                and _BETWEEN.fullmatch(text[last.end : piece.start])
            ):
                groups[-1].append(piece)
                continue
        groups.append([piece])
    return groups


def _judge(text: str, group: Sequence[Piece]) -> tuple[str, float]:
    """The entity and what part of the model's score counts."""
    kinds = {p.kind for p in group}
    first = group[0].kind
    entity = _ENTITIES[first]
    if entity == "PERSON":
        return entity, 1.0 if _is_person(text, group) else _WEAK
    if entity == "STREET_ADDRESS":
        if kinds & (_EXACT if len(kinds) > 1 else _PLACED):
            return entity, 1.0 if _is_street(text, group) else _WEAK
        if kinds == {"ZIP_CODE"} and _ZIP.search(text[: group[0].start][-_INTRODUCTION_CHARS:]):
            return "ZIP_CODE", 1.0
        return _ALONE.get(first, entity), _WEAK
    if entity == "URL":
        return entity, _WEAK
    start, end = group[0].start, group[-1].end
    if first in _NUMBERS:
        return entity, 1.0 if is_somebodys(text, start, end, phone=first == "PHONE") else _WEAK
    if first == "EMAIL":
        return entity, 1.0 if "@" in text[start:end] else _WEAK
    return entity, 1.0


def _is_street(text: str, group: Sequence[Piece]) -> bool:
    """Whether an address is written as one: with capitals where the text has any, or "street"."""
    place = text[group[0].start : group[-1].end]
    if is_foreign(place) or all(word.lower() in known_places() for word in _LETTERS.findall(place)):
        return False
    if any(c.isupper() for c in place) or _STREET.search(place):
        return True
    plain = has_capitals(text) or is_code(text)
    return not plain and len(place) >= _MIN_PLACE_CHARS and any(c.isdigit() for c in place)


def _is_person(text: str, group: Sequence[Piece]) -> bool:
    """Whether a name is somebody's: introduced as such, or of no company and no exercise."""
    start, end = group[0].start, group[-1].end
    if _INTRODUCED.search(text[max(0, start - _INTRODUCTION_CHARS) : start]):
        return True
    if is_organisation(text, start, end) or is_famous(text, start, end):
        return False
    name = text[start:end]
    if _FULL_NAME.fullmatch(name) and all(w[0].isupper() for w in name.split()):
        return True
    return not (is_exercise(text) and all(p.kind == "GIVEN_NAME" for p in group))
