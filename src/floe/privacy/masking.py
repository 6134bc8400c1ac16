"""Private values to numbered placeholders, in all the texts of one request.

A value is replaced wherever it stands in the request, not only where it was found. Of a name its
single words are replaced too ("Keller" behind "Maria Keller").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from floe.core.request import Request
from floe.core.verdict import Finding, Verdict
from floe.privacy.decoding import decoded
from floe.privacy.normalise import normalise
from floe.privacy.values import Value, Values, fold

MOST_VALUES = 256
LEAST_VALUE_BYTES = 3
_JOINED = frozenset({"PERSON", "STREET_ADDRESS"})
_PARTICLES = frozenset(
    {"van", "von", "der", "den", "the", "and", "del", "los", "bin", "ibn", "mrs"}
)
_WORD = re.compile(r"[^\W\d_][\w'’-]*")


class CannotMask(ValueError):
    """The texts cannot be masked safely; the message names no value."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A replaced place: [start, end) in code points of the masked text, and what stood there."""

    start: int
    end: int
    original: str


@dataclass(frozen=True, kw_only=True)
class MaskedText:
    """A text without its private values."""

    text: str
    pieces: tuple[Piece, ...] = ()

    def original(self) -> str:
        """The text as it was, put together from right to left."""
        text = self.text
        for piece in reversed(self.pieces):
            text = text[: piece.start] + piece.original + text[piece.end :]
        return text


@dataclass(frozen=True, kw_only=True)
class Masking:
    """The masked texts by field, and the values with their placeholders."""

    texts: Mapping[str, MaskedText]
    values: Values


def mask_request(request: Request, verdict: Verdict) -> tuple[Request, Values]:
    """The request that may leave under a `mask` verdict, and its values.

    Raises:
        CannotMask: see `mask_texts`.
    """
    masking = mask_texts(request.texts(), verdict.findings)
    if request.prompt is not None:
        return replace(request, prompt=masking.texts["prompt"].text), masking.values
    messages = tuple(
        replace(message, content=masking.texts[name].text)
        for message, (name, _) in zip(request.messages, request.texts(), strict=True)
    )
    return replace(request, messages=messages), masking.values


def mask_texts(texts: Sequence[tuple[str, str]], findings: Sequence[Finding]) -> Masking:
    """All (field, text) pairs with every found value replaced by "[ENTITY_n]".

    Equal values have one number, counted by first places. Another spelling (case, or a word of a
    name) has "[ENTITY_n_m]", so that each placeholder stands for exactly one string. Placeholders
    that the texts themselves hold are not used.

    An answer may say a value in plain letters that stands here in full-width ones, or with
    characters in between that cannot be seen: that spelling is a value too.

    Raises:
        CannotMask: a value too short to be replaced everywhere, too many values, one that stands
            there encoded (an answer may decode it), or one that would still stand in what is sent.
    """
    spans = {name: merged([f for f in findings if f.field == name], text) for name, text in texts}
    table = _Table(taken="\n".join(text for _, text in texts))
    found = [
        (entity, text[start:end]) for name, text in texts for entity, start, end in spans[name]
    ]
    table.know_names(text for entity, text in found if entity == "PERSON")
    for entity, text in found:
        if decoded(normalise(text)) is not None:
            raise CannotMask("a value is encoded: it cannot be told apart once it is decoded")
        table.add(entity, text)
    table.add_plain()
    table.add_words()
    values = table.values()
    masked = {name: _masked(text, spans[name], values, table) for name, text in texts}
    values = table.values()  # with the spellings that were met meanwhile
    if any(values.held_in(m.text) for m in masked.values()):
        raise CannotMask("a value would still be readable beside the placeholders")
    return Masking(texts=masked, values=values)


def merged(findings: Sequence[Finding], text: str) -> list[tuple[str, int, int]]:
    """(entity, start, end) by start, apart from each other, without white space at the ends.

    Overlapping findings become one that covers both (bug-log B11), named after the longer, else
    the surer; neighbouring parts of one name or address become one too (B14).
    """
    found: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (f.start, -f.end)):
        trimmed = _trimmed(finding, text)
        if trimmed is None:
            continue
        if found and _belongs(found[-1], trimmed, text):
            trimmed = _union(found.pop(), trimmed)
        found.append(trimmed)
    return [(f.entity, f.start, f.end) for f in found]


def _trimmed(finding: Finding, text: str) -> Finding | None:
    value = text[finding.start : finding.end]
    start = finding.start + len(value) - len(value.lstrip())
    end = finding.start + len(value.rstrip())
    return replace(finding, start=start, end=end) if start < end else None


def _belongs(last: Finding, finding: Finding, text: str) -> bool:
    if finding.start < last.end:
        return True
    same = finding.entity == last.entity and finding.entity in _JOINED
    return same and text[last.end : finding.start] in ("", " ")


def _union(a: Finding, b: Finding) -> Finding:
    named = max(a, b, key=lambda f: (f.end - f.start, f.score))
    return replace(named, start=min(a.start, b.start), end=max(a.end, b.end))


def _masked(
    text: str, spans: Sequence[tuple[str, int, int]], values: Values, table: _Table
) -> MaskedText:
    out: list[str] = []
    pieces: list[Piece] = []
    at = length = 0
    for start, end, placeholder in _places(text, spans, values, table):
        length += start - at
        out += [text[at:start], placeholder]
        pieces.append(Piece(start=length, end=length + len(placeholder), original=text[start:end]))
        at, length = end, length + len(placeholder)
    return MaskedText(text="".join([*out, text[at:]]), pieces=tuple(pieces))


def _places(
    text: str, spans: Sequence[tuple[str, int, int]], values: Values, table: _Table
) -> Iterator[tuple[int, int, str]]:
    """What was found, and between it whatever equals a value, by start."""
    folded, at = fold(text), 0
    for entity, start, end in [*spans, ("", len(text), len(text))]:
        for a, b, _ in values.find(folded, at, start):
            yield a, b, table.spelled(text[a:b])
        if start < end:
            yield start, end, table.add(entity, text[start:end])
        at = end


def _plain(text: str) -> str:
    """In NFKC, without format characters such as zero-width spaces."""
    folded = unicodedata.normalize("NFKC", text)
    return "".join(c for c in folded if unicodedata.category(c) != "Cf")


@dataclass(kw_only=True)
class _Root:
    """A value in all its spellings: "[label_number]", then "[label_number_2]" ..."""

    label: str
    number: int
    spellings: int = 0


@dataclass(kw_only=True)
class _Table:
    """Placeholders by string; `taken` is text that no placeholder may stand in already."""

    taken: str
    roots: dict[str, _Root] = field(default_factory=dict)
    found: dict[str, Value] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)

    def know_names(self, names: Iterable[str]) -> None:
        """Let a name that is a word of a longer one ("Keller", "Maria Keller") be the same one."""
        for name in names:
            for word in _WORD.findall(name):
                if fold(word) != fold(name):
                    self.names.setdefault(fold(word), fold(name))

    def add(self, entity: str, text: str) -> str:
        """The placeholder of a found value."""
        if fold(text) not in self.roots:
            if len(text) < 2 or len(text.encode("utf-8", "surrogatepass")) < LEAST_VALUE_BYTES:
                raise CannotMask("a value is too short to be replaced wherever it stands")
            owner = self.names.get(fold(text), fold(text)) if entity == "PERSON" else fold(text)
            if owner not in self.roots:
                self.roots[owner] = self._new_root(entity)
            self.roots[fold(text)] = self.roots[owner]
        return self.spelled(text)

    def add_words(self) -> None:
        """The words of every name, unless they are values of their own."""
        people = [v.text for v in self.found.values() if self._root(v.text).label == "PERSON"]
        for name in people:
            for word in _WORD.findall(name):
                if len(word) >= 3 and fold(word) not in _PARTICLES and fold(word) not in self.roots:
                    self.roots[fold(word)] = self._root(name)
                    self.words.add(fold(word))
                    self.spelled(word)

    def add_plain(self) -> None:
        """The plain spelling of values in full-width letters or with invisible characters."""
        for text in list(self.found):
            plain = _plain(text)
            if fold(plain) != fold(text) and len(plain) >= 2 and fold(plain) not in self.roots:
                self.roots[fold(plain)] = self._root(text)
                self.spelled(plain)

    def spelled(self, text: str) -> str:
        """The placeholder of this very spelling of a known value."""
        if text not in self.found:
            if len(self.found) >= MOST_VALUES:
                raise CannotMask(f"there are more than {MOST_VALUES} values")
            root = self._root(text)
            root.spellings += 1
            more = f"_{root.spellings}" if root.spellings > 1 else ""
            placeholder = f"[{root.label}_{root.number}{more}]"
            is_word = fold(text) in self.words
            self.found[text] = Value(text=text, placeholder=placeholder, is_word=is_word)
        return self.found[text].placeholder

    def values(self) -> Values:
        """Everything known so far."""
        return Values(self.found.values())

    def _root(self, text: str) -> _Root:
        return self.roots[fold(text)]

    def _new_root(self, entity: str) -> _Root:
        label = re.sub(r"[^A-Z0-9]+", "_", entity.upper()).strip("_") or "VALUE"
        number = self.numbers.get(label, 0) + 1
        while f"[{label}_{number}" in self.taken:
            number += 1
        self.numbers[label] = number
        return _Root(label=label, number=number)
