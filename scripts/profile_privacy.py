"""Times the privacy rules on one thread: per sentence, per 512-character prompt, rule by rule.

    python scripts/profile_privacy.py [--sentences FILE] [--json FILE] [--growth]

FILE is Presidio research's `synth_dataset_v2.json`, or the excerpt of the tests by default.
--growth instead times every rule on long texts of one kind at two lengths: a ratio far above that
of the lengths betrays a pattern that is not linear.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from floe.privacy.decoding import decoded
from floe.privacy.detector import RuleDetector
from floe.privacy.normalise import normalise
from floe.privacy.rules import ALL
from floe.privacy.rules.base import Rule

_EXCERPT = Path(__file__).parents[1] / "tests/privacy/data/presidio_sentences.json"
_PROMPT_CHARS = 512
_SLOWEST = 20
_SHORT_CHARS, _LONG_CHARS = 6_000, 24_000
_LEAST_S = 0.01  # below this the clock's noise decides
UNITS = (
    *("1", "1 ", "1-", "12.", "+1 (", "a", "A", "a1", "A1b2", "a@", "a@b.", "a.b@", "://", ":"),
    *("http://a:", "1:", "aa:", "::", "-----BEGIN ", "password=", "password is ", "token=", "$"),
    *("eyJa.", "sk-", "%4", "&#1;", "name: ", "born on ", "account number ", "account number: "),
    *("passport ", "card no. ", "lat 1.1", "geo:", "1.234567,", "N 1°", "AB12 ", "GB82 WEST "),
    *("0x", "bc1q", "x" * 63 + ".", "a at ", " (at) b", "=", "/", "{", "中", "路1号", "我叫", "张"),
    *("张伟", "住在北京市", "姓名：", "病历号"),
)
"""What long texts are made of, each to lead some pattern on."""


def texts_of(path: Path) -> list[str]:
    """The sentences of either file form."""
    items = json.loads(path.read_text(encoding="utf-8"))
    return [item.get("text") or item["full_text"] for item in items]


def prompts_of(sentences: Sequence[str]) -> list[str]:
    """Sentences joined to prompts of 512 characters."""
    joined = " ".join(sentences)
    return [joined[i : i + _PROMPT_CHARS] for i in range(0, len(joined), _PROMPT_CHARS)][:-1]


def median_ms(work: Callable[[str], object], texts: Sequence[str], *, rounds: int = 3) -> float:
    """Median over texts of the best of `rounds`, in milliseconds."""
    best: list[float] = []
    for text in texts:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            work(text)
            times.append(time.perf_counter() - start)
        best.append(min(times) * 1e3)
    return statistics.median(best)


def show_growth() -> None:
    """Print the rules that take much longer on the longer text than its length explains."""
    for unit in UNITS:
        short, long = ((unit * n)[:n] for n in (_SHORT_CHARS, _LONG_CHARS))
        for rule in ALL:
            seconds = [min(_seconds(rule, text) for _ in range(2)) for text in (short, long)]
            ratio = seconds[1] / max(seconds[0], 1e-9) / (_LONG_CHARS / _SHORT_CHARS)
            if seconds[1] > _LEAST_S and ratio > 1.7:
                print(f"{rule.name:24} {unit!r:20} {seconds[1]:.3f} s, {ratio:.1f} times linear")


def _seconds(rule: Rule, text: str) -> float:
    start = time.thread_time()
    list(rule.find(text))
    return time.thread_time() - start


def main() -> None:
    """Print the figures; write them to a file when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, default=_EXCERPT)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--growth", action="store_true")
    args = parser.parse_args()
    if args.growth:
        show_growth()
        return
    sentences = texts_of(args.sentences)
    prompts = prompts_of(sentences)
    detector = RuleDetector()
    detector.find("call 0999 999 9999 or +1 415 555 2671")
    figures = {
        "sentences": len(sentences),
        "p50_ms_sentence": median_ms(detector.find, sentences),
        "p50_ms_prompt512": median_ms(detector.find, prompts),
        "p50_ms_normalise": median_ms(normalise, sentences),
        "p50_ms_decode": median_ms(lambda t: decoded(normalise(t)), sentences),
    }
    for name, value in figures.items():
        print(f"{name:24} {value:.4f}" if isinstance(value, float) else f"{name:24} {value}")
    some = prompts[:60]
    by_rule = {r.name: median_ms(lambda t, r=r: list(r.find(t)), some) for r in ALL}
    print(f"slowest rules on {_PROMPT_CHARS} characters, median ms without any prefilter:")
    for name, value in sorted(by_rule.items(), key=lambda x: -x[1])[:_SLOWEST]:
        print(f"  {name:24} {value:.4f}")
    if args.json is not None:
        args.json.write_text(json.dumps(figures | {"rules": by_rule}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
