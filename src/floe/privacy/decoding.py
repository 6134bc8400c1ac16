"""A second copy of the text with HTML entities, percent and base64 runs and escapes decoded.

A value must not hide in an encoding that every program undoes. Decoded once: what was encoded
twice is not read. Base64 in lines of a mail is read as one. Only rules see this copy.
"""

from __future__ import annotations

import base64
import binascii
import html
import re

from floe.privacy.normalise import Normalised, normalise

_RUN = r"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{12,}={0,2}"
_ENCODED = re.compile(
    r"(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,12}(?=;));?)"
    r"|(?P<percent>(?:%[0-9A-Fa-f]{2})+)"
    r"|(?P<escape>\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}))"
    r"|(?P<lines>(?<![0-9A-Za-z+/_-])(?:[0-9A-Za-z+/]{40,128}\r?\n[ \t]{0,8}){1,200}"
    r"[0-9A-Za-z+/]{4,128}={0,2})"
    rf"|(?P<base64>{_RUN})"
)
_BASE64 = re.compile(_RUN)
_BREAK = re.compile(r"[\r\n\t ]+")
_URL_ALPHABET = str.maketrans("-_", "+/")
_Part = tuple[str, int, int]  # what a stretch [start, end) of the text decodes to


def decoded(copy: Normalised) -> Normalised | None:
    """`copy` with what is encoded decoded and normalised again; None where nothing is encoded.

    Every character of a decoded base64 run maps to the whole run.
    """
    parts = [part for match in _ENCODED.finditer(copy.text) for part in _parts(match)]
    if not parts:
        return None
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for piece, start, end in [*parts, ("", len(copy.text), len(copy.text))]:
        out += [copy.text[at:start], piece]
        starts += [*range(at, start), *([start] * len(piece))]
        ends += [*range(at + 1, start + 1), *([end] * len(piece))]
        at = end
    again = normalise("".join(out))
    return Normalised(
        text=again.text,
        starts=[copy.starts[starts[i]] for i in again.starts],
        ends=[copy.ends[ends[i - 1] - 1] for i in again.ends],
    )


def _parts(match: re.Match[str]) -> list[_Part]:
    """The decoded parts of one candidate, by start; none where it is no encoding."""
    value, start = match.group(), match.start()
    if match.lastgroup == "percent":
        return _percent_parts(value, start)
    if match.lastgroup == "lines":
        piece = _from_base64(_BREAK.sub("", value))
        if not piece:
            singly = _BASE64.finditer(match.string, start, match.end())
            return [(text, *m.span()) for m in singly if (text := _from_base64(m[0]))]
    elif match.lastgroup == "base64":
        piece = _from_base64(value)
    elif match.lastgroup == "entity":
        piece = html.unescape(value)
    else:
        piece = chr(int(value[2:], 16))
    return [] if piece in ("", value) else [(piece, start, match.end())]


def _percent_parts(value: str, start: int) -> list[_Part]:
    try:
        text = bytes.fromhex(value.replace("%", "")).decode()
    except UnicodeDecodeError:
        return []
    parts: list[_Part] = []
    for char in text:
        end = start + 3 * len(char.encode())
        parts.append((char, start, end))
        start = end
    return parts


def _from_base64(value: str) -> str:
    """The text in it; "" where it holds no readable UTF-8."""
    bare = value.rstrip("=").translate(_URL_ALPHABET)
    try:
        text = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if all(c.isprintable() or c in "\t\r\n" for c in text) else ""
