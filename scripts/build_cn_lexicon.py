"""Makes the word and name tables of the Chinese name rule from the dictionary of jieba 0.42.1.

    pip download --no-deps --no-binary :all: jieba==0.42.1 && tar xzf jieba-0.42.1.tar.gz
    python scripts/build_cn_lexicon.py jieba-0.42.1/jieba/dict.txt

Costs are -ln of relative frequency in tenths. Words that name people ("nr") give the frequency of
each character in names; the well-known of them stay words, so that nobody is told about Li Bai.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

from floe.privacy.rules.cn_surnames import COMPOUND, SINGLE

_HAN = re.compile(r"[\u4e00-\u9fff]{1,4}")
_OUT = Path(__file__).parents[1] / "src/floe/privacy/rules/data"
_MIN_WORD, _MIN_SINGLE, _MIN_PERSON_OF_TWO, _MIN_PERSON_OF_THREE = 100, 20, 60, 800
_MIN_IDIOM, _MIN_PLACE = 30, 10
# Of "nr" with two characters most are words; these are names that many people bear.
_NAMES = {
    *("李俊", "李铁", "李德", "王明", "王平", "王英", "张宁", "胡佳", "杨锐", "杨维", "张旭"),
    *("金平", "沈思", "魏巍", "李靖", "王猛", "陈云", "胡克"),
}
_LINE_CHARS = 98
_HEAD = (
    "# From dict.txt of jieba 0.42.1 (PyPI), MIT licence, Copyright (c) 2013 Sun Junyi.\n"
    "# Made by scripts/build_cn_lexicon.py: a cost, then what has it.\n"
)


def _wrapped(cost: int, items: list[str]) -> list[str]:
    lines, line = [], str(cost)
    for item in items:
        if len(line) + 1 + len(item) > _LINE_CHARS:
            lines.append(line)
            line = str(cost)
        line += f" {item}"
    return [*lines, line]


def _write(path: Path, costs: dict[str, int]) -> None:
    by_cost: dict[int, list[str]] = defaultdict(list)
    for item, cost in costs.items():
        by_cost[cost].append(item)
    lines = [line for cost in sorted(by_cost) for line in _wrapped(cost, sorted(by_cost[cost]))]
    path.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def _cost(count: float, total: float) -> int:
    return round(-10 * math.log(count / total))


def main() -> None:
    """Write cn_words.txt and cn_given.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dictionary", type=Path)
    args = parser.parse_args()
    rows = [line.split() for line in args.dictionary.read_text(encoding="utf-8").splitlines()]
    total = sum(int(freq) for _, freq, _ in rows)
    words: dict[str, int] = {}
    given: Counter[str] = Counter()
    for word, freq_text, tag in rows:
        freq = int(freq_text)
        if not _HAN.fullmatch(word):
            continue
        family = 2 if word[:2] in COMPOUND else int(word[0] in SINGLE)
        person = tag == "nr" and family and 1 <= len(word) - family <= 2
        if person:
            given.update(word[family:])
        least = _MIN_SINGLE if len(word) == 1 else _MIN_WORD
        if len(word) == 4:
            least = _MIN_IDIOM
        if tag in ("ns", "nt", "nz"):
            least = _MIN_PLACE
        if person:
            least = _MIN_PERSON_OF_TWO if len(word) == 2 else _MIN_PERSON_OF_THREE
        if freq >= least and word not in _NAMES:
            words[word] = _cost(freq, total)
    n_given = sum(given.values())
    _OUT.mkdir(exist_ok=True)
    _write(_OUT / "cn_words.txt", words)
    common = {c: _cost(n, n_given) for c, n in given.items() if n >= 5}
    _write(_OUT / "cn_given.txt", common)
    print(f"{len(words)} words, {len(common)} characters of given names")


if __name__ == "__main__":
    main()
