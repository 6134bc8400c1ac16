"""A copy of the text made for detection, with a map back to the original.

Hidden and look-alike characters must not hide a value from a rule (bug-log B25, B26, B28, B29).
Only detectors see the copy; every span that leaves this part refers to the original.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

# What is its own copy: ASCII, accented Latin letters, Chinese characters and punctuation.
_PLAIN = re.compile(
    "[\t\n\v\f\r\x20-\x7e\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u2018\u2019\u201c\u201d"
    "\u3001\u3002\u3008-\u3011\u4e00-\u9fff]*"
)
_DIGITS = "0123456789"

# Letters that look like a Latin one (subset of Unicode UTS 39 confusables), pairwise.
_LOOKALIKES = (
    "аaеeоoрpсcуyхxіiјjѕsһhԁdԛqԝwьbкkмmтtнhвbгrпn"
    "АAВBЕEЅSІIЈJКKМMНHОOРPСCТTУYХXԌGԚQԜWҮYѴV"
    "αaεeιiκkνvοoρpτtυuχxωwγyηnϲcϳj"
    "ΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧXϹCϿC"
    "оoօoսuոnհhցgզqաwԼLՕOՍUՏS"
    "ıiİIȷjɑaɡgɩiʟlʏyɴnɪiʀrꞮIꞁl"
)
# Before NFKC, which makes letters and rings of them: signs that stand for a degree.
_DEGREES = {0x00BA: "\u00b0", 0x02DA: "\u00b0"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_FOLD = dict(zip(_LOOKALIKES[::2], _LOOKALIKES[1::2], strict=True)) | dict.fromkeys(_DASHES, "-")
# Letters by category that print as nothing (Hangul fillers).
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")


@dataclass(frozen=True, kw_only=True)
class Normalised:
    """`text[i]` came from the original's code points `[starts[i], ends[i])`."""

    text: str
    starts: range | list[int]
    ends: range | list[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The original's span for `[start, end)` of the copy; needs start < end."""
        return self.starts[start], self.ends[end - 1]


def normalise(text: str, *, fold: bool = True) -> Normalised:
    """NFKC, no format or control characters, no marks on digits, ASCII digits.

    With `fold`, letters of other scripts that look Latin become Latin, dashes become "-".
    """
    if _PLAIN.fullmatch(text):
        return Normalised(text=text, starts=range(len(text)), ends=range(1, len(text) + 1))
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    while at < len(text):
        plain_end = _plain_end(text, at)
        if plain_end > at:
            out.append(text[at:plain_end])
            starts.extend(range(at, plain_end))
            ends.extend(range(at + 1, plain_end + 1))
            at = plain_end
            continue
        end = _cluster_end(text, at)
        piece = _normal_cluster(text[at:end], fold=fold)
        out.append(piece)
        starts.extend([at] * len(piece))
        ends.extend([end] * len(piece))
        at = end
    return Normalised(text="".join(out), starts=starts, ends=ends)


def _plain_end(text: str, at: int) -> int:
    """End of the plain run at `at`, less its last character if a mark may follow it."""
    match = _PLAIN.match(text, at)
    end = match.end() if match else at
    return end - 1 if at < end < len(text) else end


def _cluster_end(text: str, at: int) -> int:
    """One base character and the marks and format characters upon it."""
    end = at + 1
    while end < len(text) and (unicodedata.category(text[end])[0] == "M" or _hidden(text[end])):
        end += 1
    return end


def _normal_cluster(cluster: str, *, fold: bool) -> str:
    shown = "".join(c for c in cluster if not _hidden(c))
    result: list[str] = []
    for char in unicodedata.normalize("NFKC", shown.translate(_DEGREES)):
        value = unicodedata.decimal(char, None)
        if value is not None:
            result.append(_DIGITS[value])
        elif unicodedata.category(char)[0] == "M":
            # On a digit a mark is noise; on a letter it may be the spelling.
            if not result or result[-1] not in _DIGITS:
                result.append(char)
        elif not _hidden(char):
            result.append(_FOLD.get(char, char) if fold else char)
    return "".join(result)


def _hidden(char: str) -> bool:
    """Whether it prints as nothing: format and control characters, fillers, selectors."""
    if char in "\t\n\v\f\r":
        return False
    if char in _BLANK_LETTERS or char == "\u034f" or "\ufe00" <= char <= "\ufe0f":
        return True
    return unicodedata.category(char) in ("Cf", "Cc")
