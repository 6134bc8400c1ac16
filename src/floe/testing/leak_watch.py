"""Who sees what leaves: every byte and line, searched for pieces of planted values."""

from __future__ import annotations

import base64
import binascii
import html
import json
import logging
import re
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

PIECE_CHARS = 8
"""So many characters of a value in a row are a leak; a shorter value leaks as a whole."""
# What Floe itself writes everywhere: ids, digests, times, addresses of objects.
_OWN = re.compile(
    r"(?:chatcmpl|cmpl|req)-[0-9a-f]{32}|\b[0-9a-f]{64}\b|\b0x[0-9a-f]{8,16}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\+00:00)?|127\.0\.0\.1:\d+",
)
_NUMBER = re.compile(r"\d(?:[ \-./()\u00a0]{0,2}\d)+")
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]{12,}={0,2}")
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A piece of the value of case `number` was seen at `where`."""

    number: int
    where: str


class Watch:
    """Searches texts for planted values; safe for threads.

    `public` is text without values: its pieces are no leak.
    """

    def __init__(self, *, public: str) -> None:
        self._public = _pieces(_plain(public)) | _pieces(_squeezed(_plain(public)))
        self._pieces: dict[str, int] = {}
        self._short: dict[int, dict[str, int]] = defaultdict(dict)
        self._seen: set[int] = set()
        self._lock = threading.Lock()
        self.leaks: set[Leak] = set()
        self.bytes: Counter[str] = Counter()

    def plant(self, number: int, value: str) -> None:
        """Look for this value from now on."""
        forms = {_plain(value), _squeezed(_plain(value))}
        numeric = re.sub(r"\D", "", value)
        if len(numeric) >= PIECE_CHARS:
            forms.add(numeric)
        for form in forms:
            if len(form) < PIECE_CHARS:
                self._short[len(form)][form] = number
            for piece in _pieces(form) - self._public:
                self._pieces[piece] = number

    def see(self, where: str, text: str | bytes, *, about: int | None = None) -> None:
        """Search what was seen at `where`, as it is and decoded in every way a program may.

        `about` is the case that it belongs to, where that is known: values may share pieces.
        """
        size = len(text)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        text = _OWN.sub("", text)
        with self._lock:
            self.bytes[where] += size
            key = hash((where, text))
            if key in self._seen:
                return
            self._seen.add(key)
            for form in _forms(text):
                self._search(where, form, about)

    def see_json(self, where: str, data: Any, *, about: int | None = None) -> None:
        """Every string of a JSON value, base64 of an answer and its draft undone and joined."""
        if isinstance(data, dict):
            said = b"".join(_undone(data.get(name, "")) for name in ("answer", "draft"))
            self.see(where, said, about=about)
        for text in _strings(data):
            self.see(where, text, about=about)

    def _search(self, where: str, form: str, about: int | None) -> None:
        found = [
            self._pieces[form[i : i + PIECE_CHARS]]
            for i in range(len(form) - PIECE_CHARS + 1)
            if form[i : i + PIECE_CHARS] in self._pieces
        ]
        for length, values in self._short.items():
            found += [
                values[form[i : i + length]]
                for i in range(len(form) - length + 1)
                if form[i : i + length] in values
            ]
        self.leaks |= {Leak(number=about if about is not None else n, where=where) for n in found}


class LogWatch(logging.Handler):
    """A handler that shows a `Watch` every record of every logger, with tracebacks."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(level=0)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Search one record, and its arguments as they would print."""
        text = self.format(record)
        self._watch.see("log", text)


class StreamWatch:
    """Stands for stderr or stdout."""

    def __init__(self, watch: Watch, where: str) -> None:
        self._watch, self._where = watch, where

    def write(self, text: str) -> int:
        """Search what is printed."""
        self._watch.see(self._where, text)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        """It is no terminal."""
        return False


def _forms(text: str) -> Iterator[str]:
    """The text as such, and with what it encodes undone: percent, HTML, escapes, base64."""
    plain = _plain(text)
    yield plain
    yield _squeezed(plain)
    for match in _NUMBER.finditer(plain):
        yield re.sub(r"\D", "", match.group())
    undone = html.unescape(unquote(_ESCAPE.sub(lambda m: chr(int(m[1], 16)), text)))
    if undone != text:
        yield _plain(undone)
    for match in _BASE64.finditer(text):
        inside = _undone(match.group())
        if inside:
            yield _plain(inside.decode("utf-8", "ignore"))


def _plain(text: str) -> str:
    """Small letters in NFKC, without characters that cannot be seen; digits of all scripts."""
    folded = unicodedata.normalize("NFKC", text)
    return "".join(
        str(unicodedata.decimal(c)) if c.isdecimal() else c
        for c in folded.lower()
        if unicodedata.category(c) not in ("Cf", "Mn")
    )


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def _pieces(text: str) -> set[str]:
    return {text[i : i + PIECE_CHARS] for i in range(len(text) - PIECE_CHARS + 1)}


def _undone(text: Any) -> bytes:
    if not isinstance(text, str):
        return b""
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield str(key)
            yield from _strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from _strings(value)


def json_or_none(data: bytes) -> Any:
    """The JSON value in `data`; None where it is none."""
    try:
        return json.loads(data)
    except ValueError:
        return None
