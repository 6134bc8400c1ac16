"""Times the privacy rules on one thread: per sentence, per 512-character prompt, rule by rule.

    python scripts/profile_privacy.py [--sentences FILE] [--json FILE]

FILE is Presidio research's `synth_dataset_v2.json`, or the excerpt of the tests by default.
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

_EXCERPT = Path(__file__).parents[1] / "tests/privacy/data/presidio_sentences.json"
_PROMPT_CHARS = 512
_SLOWEST = 20


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


def main() -> None:
    """Print the figures; write them to a file when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, default=_EXCERPT)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
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
