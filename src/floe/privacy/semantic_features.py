"""A text's windows and what of each the semantic score sees.

Legend: C cues, D width of the embedding.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

MAX_WINDOW_CHARS = 400
HASH_SIZE = 8192
"""Places for English words and pairs, and as many again for Chinese characters in a row."""
CUES = (
    *("bias", "first", "has_first", "third", "has_third", "kin", "names", "has_names"),
    *("numbers", "has_numbers", "asks", "question_mark", "length", "is_chinese"),
    *("first_zh", "third_zh", "nobody"),
)
IS_CHINESE = CUES.index("is_chinese")

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=\S)|(?<=[。！？；])(?=\S)|\n+")
_WORD = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)?|\d[\d.,]*|[\u4e00-\u9fff]+|[?!？！]")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FIRST = _set("i i'm i've i'd i'll my me mine myself we we're we've our us ours")
_THIRD = _set("he she him her his hers they their them he's she's")
_KIN = _set(
    "mother father mom mum dad sister brother wife husband son daughter aunt uncle cousin "
    "boyfriend girlfriend ex partner boss colleague coworker neighbour neighbor friend client "
    "patient roommate flatmate manager parents kids"
)
_ASKS = _set(
    "what how why which who when where explain write list describe give summarise summarize "
    "translate compare create generate is are does do can find suggest"
)


@dataclass(frozen=True, kw_only=True)
class Features:
    """`words` and `chars` are places in the hashed weights, `cues` the values of CUES."""

    words: tuple[int, ...]
    chars: tuple[int, ...]
    cues: tuple[float, ...]

    @property
    def is_chinese(self) -> bool:
        """Whether Chinese prevails; the embedding knows English only and is left out then."""
        return self.cues[IS_CHINESE] > 0


def windows(text: str) -> list[tuple[int, int]]:
    """[start, end) of neighbouring sentences, as many together as fit; all but white space.

    A sentence that is too long alone is cut, at white space where there is some.
    """
    found: list[tuple[int, int]] = []
    for start, end in _pieces(text):
        if found and end - found[-1][0] <= MAX_WINDOW_CHARS:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def features(text: str, *, known_words: frozenset[int]) -> Features:
    """What one window shows. `known_words`: `word_id` of words that are no names in capitals."""
    words, chinese = _split(text, known_words)
    pairs = {f"{a} {b}" for a, b in pairwise(words)}
    cues = _cues(text, words, chinese)
    return Features(
        words=_places({*words, *pairs}),
        chars=_places(set(_grams(chinese))),
        cues=cues,
    )


def word_id(word: str) -> int:
    """A number for a word in small letters."""
    return zlib.crc32(word.encode())


def _places(tokens: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted(zlib.crc32(token.encode()) % HASH_SIZE for token in tokens))


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Sentences, none longer than a window."""
    start = 0
    for match in [*_END.finditer(text), None]:
        end = match.start() if match is not None else len(text)
        yield from _cut(text, start, end)
        start = match.end() if match is not None else end


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > MAX_WINDOW_CHARS:
        space = text.rfind(" ", start + MAX_WINDOW_CHARS // 2, start + MAX_WINDOW_CHARS)
        at = space if space > 0 else start + MAX_WINDOW_CHARS
        if text[start:at].strip():
            yield start, at
        start = at
    if text[start:end].strip():
        yield start, end


def _split(text: str, known_words: frozenset[int]) -> tuple[list[str], list[str]]:
    """Words in small letters, names and numbers as one sign each; runs of Chinese characters."""
    words: list[str] = []
    chinese: list[str] = []
    for word in _WORD.findall(text):
        if "\u4e00" <= word[0] <= "\u9fff":
            chinese.append(word)
        elif word[0].isdigit():
            words.append("<number>")
        else:
            small = word.lower().replace("’", "'")
            is_name = word[0].isupper() and len(word) > 1 and word_id(small) not in known_words
            words.append("<name>" if is_name else small)
    return words, chinese


def _grams(runs: Iterable[str]) -> Iterator[str]:
    """One to three Chinese characters in a row."""
    for run in runs:
        for n in (1, 2, 3):
            for i in range(len(run) - n + 1):
                yield run[i : i + n]


def _cues(text: str, words: list[str], chinese: list[str]) -> tuple[float, ...]:
    first, third, kin, names, numbers = (
        sum(map(test, words))
        for test in (
            _FIRST.__contains__,
            _THIRD.__contains__,
            _KIN.__contains__,
            "<name>".__eq__,
            "<number>".__eq__,
        )
    )
    n_chinese = sum(map(len, chinese))
    first_zh = sum(run.count("我") + run.count("咱") for run in chinese)
    third_zh = sum(run.count("他") + run.count("她") for run in chinese)
    return (
        1.0,
        min(first, 3) / 2,
        float(first > 0),
        min(third, 3) / 2,
        float(third > 0),
        float(min(kin, 2)),
        min(names, 3) / 2,
        float(names > 0),
        min(numbers, 4) / 3,
        float(numbers > 0),
        float(bool(words) and words[0] in _ASKS),
        float("?" in text or "？" in text),
        min(len(words), 60) / 60,
        float(n_chinese > 0.3 * (n_chinese + len(words))),
        min(first_zh, 3) / 2,
        min(third_zh, 3) / 2,
        float(first + first_zh + third + third_zh + kin + names == 0),
    )
