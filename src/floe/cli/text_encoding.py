"""Which encoding a file is in: UTF-8, UTF-16, GB18030 (Chinese Windows) or Windows-1252."""

from __future__ import annotations

import codecs
import re

from floe.core.errors import BadRequest

_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
_SHORT_RUN_BYTES = 4


def encoding_of(piece: bytes, *, is_first: bool) -> str | None:
    """The encoding of a text that goes on with `piece`; None while it is ASCII so far.

    Raises:
        BadRequest: it holds zero bytes, so it is no text.
    """
    if is_first and piece.startswith(_UTF_16_MARKS):
        return "utf-16"
    if b"\0" in piece:
        raise BadRequest(
            "the file holds zero bytes, so it is no text. Save it as text (UTF-8) first",
            param="file",
        )
    if piece.isascii():
        return None
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(piece)
    broken = text.count("\ufffd")
    if not broken or broken * 2 < sum(not c.isascii() for c in text):
        return "utf-8-sig"
    return "gb18030" if _looks_chinese(piece) else "cp1252"


def _looks_chinese(piece: bytes) -> bool:
    """Whether most high bytes stand in runs of pairs; letters with accents stand inside words."""
    chinese = every = 0
    for run in _HIGH_RUN.finditer(piece):
        start, end = run.span()
        around = piece[max(0, start - 1) : start] + piece[end : end + 1]
        in_word = end - start < _SHORT_RUN_BYTES and around.isalpha()
        every += end - start
        chinese += 0 if in_word or (end - start) % 2 else end - start
    return chinese * 2 >= every
