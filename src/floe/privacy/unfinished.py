"""Where a text that still grows may have begun a private value.

The gate sees a card number when its last digit is there; its first twelve must not have left by
then. So an end that looks like the beginning of a value waits until it has become one, and the
answer is closed, or something else. What looks like an ordinary word up to its last letter (the
name in front of an "@", a person) cannot wait: every word would.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from floe.privacy.normalise import normalise

TAIL_CHARS = 256
_HAN = r"\u4e00-\u9fff"


def _always(_value: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """A pattern that reaches to the end of the text; its group "value" is what waits."""

    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = _always


def _long_number(value: str) -> bool:
    """Six digits, three behind a plus sign, or eight characters: no year, price or small sum."""
    n_digits = sum(c.isdigit() for c in value)
    return n_digits >= (3 if value.startswith("+") else 6) or len(value.rstrip()) >= 8


def _mixed(value: str) -> bool:
    """Letters and at least two digits: a key, a digest, an id; seldom a word."""
    n_digits = sum(c.isdigit() for c in value)
    return n_digits >= 2 and any(c.isalpha() for c in value)


def _of(pattern: str, holds: Callable[[str], bool] = _always, *, flags: int = 0) -> _Beginning:
    return _Beginning(pattern=re.compile(pattern, flags), holds=holds)


_BEGINNINGS = (
    _of(r"(?<![0-9A-Za-z.])(?P<value>[+(]{0,2}[0-9][0-9 ().\-/]{0,60})\Z", _long_number),
    # Cut by line ends or signs, as `joining` puts it together.
    _of(
        r"(?<![0-9A-Za-z.])(?P<value>[0-9]{3,8}(?:[ \r]?[\n_|/*][ ]?[0-9]{1,8}){1,6}"
        r"[ \n_|/*]{0,2})\Z",
        _long_number,
    ),
    _of(r"(?<![0-9A-Za-z])(?P<value>[A-Z]{2}[0-9]{2}[A-Z0-9 .\n]{2,40})\Z"),
    _of(r"(?<![0-9A-Za-z+/_=-])(?P<value>[0-9A-Za-z+/_=-]{6,200})\Z", _mixed),
    _of(r"(?<!\S)(?P<value>[^\s@]{1,100}@\S{0,100})\Z"),
    _of(
        r"(?<!\S)(?P<value>[\w.+-]{1,64}\s?[(\[{]\s?(?:at|@)\s?[)\]}]?\s?[\w.-]{0,64})\Z",
        flags=re.IGNORECASE,
    ),
    _of(r"://(?P<value>[^\s/]{1,64}:[^\s/]{0,128})\Z"),
    _of(
        r"(?<![0-9A-Za-z])(?P<value>(?:sk|pk|rk)[-_]\S{0,200}|gh[a-z]_\S*|github_pat\S*|xox[a-z]-\S*"
        r"|A[KS]IA\S*|AIza\S*|glpat-\S*|hf_\S*|npm_\S*|pypi-\S*|eyJ\S*|bc1\S*|0x[0-9A-Fa-f]\S*)\Z"
    ),
    _of(r"(?P<value>-----BEGIN[^\n]{0,40}(?:\n[\s\S]*)?)\Z"),
    _of(
        r"(?:pass ?(?:word|phrase|code)|passwor[td]|passwd|pwd|secret|token|api[ _-]?key|pin"
        r"|密码|口令)"
        r"['\"]?\s{0,2}(?:is|was|ist|=|:|为|是|：)\s{0,2}(?P<value>\S{1,100})\Z",
        flags=re.IGNORECASE,
    ),
    _of(r"(?<![0-9A-Za-z:])(?P<value>(?:[0-9A-Fa-f]{1,4}[:-]){2,}[0-9A-Fa-f:-]{0,40})\Z"),
    _of(r"(?<![0-9.])(?P<value>-?[0-9]{1,3}\.[0-9]{3,}[,;]?\s{0,2}-?[0-9.]{0,14})\Z"),
    _of(
        r"(?:\bborn|\bdob|date of birth|birthday|\bgeb(?:oren)?|\bnée?|出生|生日)"
        r"(?P<value>[^\n]{1,32})\Z",
        lambda value: any(c.isdigit() for c in value),
        flags=re.IGNORECASE,
    ),
    _of(
        rf"(?P<value>[{_HAN}]{{2,3}}(?:省|市|自治区|特别行政区)[{_HAN}]{{1,8}}(?:区|县|市|镇|旗)"
        rf"[{_HAN}0-9A-Za-z-]{{0,40}})\Z"
    ),
    _of(rf"(?:住在|家住|住址|地址)(?:是|为|：|:)?(?P<value>[{_HAN}0-9A-Za-z-]{{3,40}})\Z"),
)


def safe_end(text: str) -> int:
    """Index in `text` from which on it may be the beginning of a value; its length if nothing is.

    Looks back at most TAIL_CHARS: what is longer is not waited for.
    """
    begin = max(0, len(text) - TAIL_CHARS)
    tail = text[begin:]
    copy = None if tail.isascii() else normalise(tail)
    read = tail if copy is None else copy.text
    starts = [
        match.start("value")
        for beginning in _BEGINNINGS
        if (match := beginning.pattern.search(read)) and beginning.holds(match["value"])
    ]
    if not starts:
        return len(text)
    start = min(starts)
    return begin + (start if copy is None else copy.starts[start])
