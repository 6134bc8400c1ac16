"""Train the semantic privacy score and report its figures.

    python scripts/train_semantic.py --data ../shared/data [--home HOME] [--write]

Without --write, only the figures of the calibration split are printed. With it, the head goes to
src/floe/privacy/semantic_data and the held-out items to src/floe/evaluation/privacy_semantic_data.
About a minute on one core.

Legend: N windows, F features (cues, words, chars, then the embedding three times).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from semantic.fit import fit, platt
from semantic.sources import (
    SEED,
    Case,
    Text,
    by_source,
    confaide,
    negatives,
    privacy_lens,
    split_of,
)
from semantic.templates import lines, sentences

from floe.models.pull import ensure
from floe.privacy.semantic import SemanticDetector
from floe.privacy.semantic_features import (
    CUES,
    HASH_SIZE,
    MAX_WINDOW_CHARS,
    Features,
    features,
    windows,
    word_id,
)
from floe.privacy.semantic_head import (
    EMBEDDING_SCALE,
    FORMAT,
    Head,
    hashed,
    person,
    save_head,
)
from floe.routing.embed import StaticEmbedding

FloatArray = NDArray[np.float32]

ROOT = Path(__file__).parents[1]
HEAD = ROOT / "src/floe/privacy/semantic_data/head.npz"
HELD_OUT = ROOT / "src/floe/evaluation/privacy_semantic_data/held_out.jsonl.gz"
DECAY, STEPS = 1e-4, 100
MAX_FPR = 0.05
PER_TEMPLATE = 12
MORE_PER_TEMPLATE = 40  # of the templates with long word lists, which are for training only
GENERAL = ("self_instruct", "gsm8k", "pubmedqa", "mbpp", "templates_en", "templates_zh")
# What a source counts for; its windows share that by the square root of their number.
COUNTS = {
    "items": 3.0,
    "notes": 1.5,
    "items_mixed": 1.5,
    "notes_mixed": 0.7,
    "stories": 0.5,
    "private_en": 2.0,
    "private_zh": 2.0,
    "private_en_mixed": 1.2,
    "private_zh_mixed": 1.2,
    "templates_en": 2.5,
    "templates_zh": 2.5,
    "self_instruct": 4.0,
}
Row = tuple[str, str, int]
"""(source, window, 1 = private)"""


def template_texts(kind: str, language: str, split: str, count: int) -> list[str]:
    """Sentences of the templates of a split: 60 % train, 15 % cal, 25 % test.

    The word-list templates (train_*.txt) are all for training.
    """
    chosen = [t for t in lines(kind, language) if split_of(t, 0.6, 0.15) == split]
    found = [s for t in chosen for s in sentences(t, language, count)]
    if split == "train":
        more = lines(f"train_{kind}", language)
        found += [s for t in more for s in sentences(t, language, MORE_PER_TEMPLATE)]
    return found


def training_rows(cases: list[Case], general: list[Text]) -> list[Row]:
    """Windows to learn from."""
    rng = random.Random(SEED)
    mine = [c for c in cases if c.split == "train"]
    private = [("items", i) for c in mine for i in c.items]
    private += [("notes", n) for c in mine for n in (*c.notes, c.matter)]
    rows: list[Row] = []
    for language in ("en", "zh"):
        found = template_texts("private", language, "train", PER_TEMPLATE)
        private += [(f"private_{language}", s) for s in found]
        found = template_texts("general", language, "train", PER_TEMPLATE + 6)
        rows += [(f"templates_{language}", s, 0) for s in found]
    for source, texts in by_source(general, "train").items():
        for text in texts:
            places = windows(text)
            some = rng.sample(places, min(4, len(places)))
            rows += [(source, text[a:b], 0) for a, b in some]
    stories = [c.story[a:b] for c in mine for a, b in windows(c.story)]
    rows += [("stories", s, 1) for s in stories]
    return rows + _mixtures(private, rows, rng)


def _mixtures(private: list[tuple[str, str]], rows: list[Row], rng: random.Random) -> list[Row]:
    """Private sentences alone and among general ones, and general ones together."""
    plain = ("self_instruct", "gsm8k", "wikitext", "pubmedqa", "templates_en")
    english = [re.split(r"(?<=[.!?])\s|\n", t)[0] for s, t, _ in rows if s in plain]
    english = [t for t in english if 0 < len(t) < 130]
    chinese = [t for s, t, _ in rows if s == "templates_zh"]
    made: list[Row] = []
    for source, text in private:
        is_chinese = source.endswith("zh")
        parts = [*rng.sample(chinese if is_chinese else english, rng.choice((1, 1, 2))), text]
        rng.shuffle(parts)
        mixed = ("" if is_chinese else " ").join(parts)
        made.append((source, text[:MAX_WINDOW_CHARS], 1))
        if len(mixed) <= MAX_WINDOW_CHARS:
            made.append((f"{source}_mixed", mixed, 1))
    for _ in range(1200):
        made.append(("general_mixed", " ".join(rng.sample(english, rng.choice((2, 3)))), 0))
    for _ in range(300):
        made.append(("general_zh_mixed", "".join(rng.sample(chinese, 2)), 0))
    return made


def known_words(rows: list[Row]) -> frozenset[int]:
    """Words that stand in small letters at least twice in what is not private."""
    counts = Counter(w for _, text, _ in rows for w in set(re.findall(r"\b[a-z']+\b", text)))
    return frozenset(word_id(word) for word, count in counts.items() if count >= 2)


def matrix(texts: list[str], known: frozenset[int], embed: StaticEmbedding) -> FloatArray:
    """Shape (N, F)."""
    seen = [features(text, known_words=known) for text in texts]
    n_cues, width = len(CUES), embed.width
    x_NF = np.zeros((len(texts), n_cues + 2 * HASH_SIZE + 3 * width), dtype=np.float32)
    for row_F, one, text in zip(x_NF, seen, texts, strict=True):
        _fill(row_F, one, np.zeros(width, np.float32) if one.is_chinese else embed(text))
    return x_NF


def _fill(row_F: FloatArray, seen: Features, vector_D: FloatArray) -> None:
    n_cues = len(CUES)
    row_F[:n_cues] = seen.cues
    # Two signs may share a place: both count, as at the time of use.
    np.add.at(row_F, np.array(seen.words, dtype=int) + n_cues, hashed(len(seen.words)))
    np.add.at(row_F, np.array(seen.chars, dtype=int) + n_cues + HASH_SIZE, hashed(len(seen.chars)))
    first, other = person(seen)
    both = np.concatenate([vector_D, first * vector_D, other * vector_D])
    row_F[n_cues + 2 * HASH_SIZE :] = EMBEDDING_SCALE * both


def learn(rows: list[Row], embed: StaticEmbedding) -> Head:
    """A head that is not calibrated yet."""
    known = known_words([r for r in rows if not r[2]])
    sizes = Counter(source for source, _, _ in rows)
    weight_N = np.array([COUNTS.get(s, 1.0) / sizes[s] ** 0.5 for s, _, _ in rows], np.float32)
    y_N = np.array([y for _, _, y in rows], dtype=np.float32)
    x_NF = matrix([text for _, text, _ in rows], known, embed)
    theta_F = fit(x_NF, y_N, weight_N, decay=DECAY, steps=STEPS)
    ends = np.cumsum([len(CUES), HASH_SIZE, HASH_SIZE, embed.width, embed.width])
    cues, words, chars, plain, first, other = np.split(theta_F.astype(np.float16), ends)
    return Head(
        cues_C=cues.astype(np.float32),
        words_H=words.astype(np.float32),
        chars_H=chars.astype(np.float32),
        plain_D=plain.astype(np.float32),
        first_D=first.astype(np.float32),
        other_D=other.astype(np.float32),
        known_words=known,
        slope=1.0,
        offset=0.0,
        threshold=0.5,
        encoder_digest=embed.digest,
        card={},
    )


def calibration_sets(
    cases: list[Case], general: list[Text]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(private, general) texts of the calibration split, by source."""
    private = {"items": [i for c in cases if c.split == "cal" for i in c.items]}
    plain = by_source(general, "cal")
    for language in ("en", "zh"):
        private[f"private_{language}"] = template_texts("private", language, "cal", 6)
        plain[f"templates_{language}"] = template_texts("general", language, "cal", 6)
    return private, plain


def calibrated(
    head: Head, private: dict[str, list[str]], plain: dict[str, list[str]], embed: StaticEmbedding
) -> Head:
    """Platt's slope and offset, and the lowest threshold with a mean FPR of at most MAX_FPR."""
    used = {**private, **{k: plain[k] for k in GENERAL}}
    logits = {k: np.array([_logit(head, t, embed) for t in v]) for k, v in used.items()}
    logit_N = np.concatenate(list(logits.values())).astype(np.float32)
    y_N = np.concatenate([np.full(len(v), float(k in private)) for k, v in logits.items()])
    weight_N = np.concatenate(
        [
            np.full(len(v), 1 / (len(v) * len(private if k in private else GENERAL)))
            for k, v in logits.items()
        ]
    )
    slope, offset = platt(logit_N, y_N.astype(np.float32), weight_N.astype(np.float32))
    at = next(
        t
        for t in np.arange(-10, 10, 0.01)
        if np.mean([np.mean(logits[k] >= t) for k in GENERAL]) <= MAX_FPR
    )
    values = {**vars(head), "slope": slope, "offset": offset}
    threshold = Head(**values).probability(float(at))
    return Head(**{**values, "threshold": threshold})


def _logit(head: Head, text: str, embed: StaticEmbedding) -> float:
    return max(
        head.logit(features(text[a:b], known_words=head.known_words), embed(text[a:b]))
        for a, b in windows(text)
    )


def with_card(head: Head, rows: list[Row]) -> Head:
    """The head with its origin inside."""
    card = {
        "format": FORMAT,
        "made": datetime.now(UTC).date().isoformat(),
        "seed": SEED,
        "cues": list(CUES),
        "slope": head.slope,
        "offset": head.offset,
        "threshold": head.threshold,
        "encoder": "wordllama-256",
        "encoder_digest": head.encoder_digest,
        "windows": dict(Counter(source for source, _, _ in rows)),
        "licence": "Apache-2.0; trained on data under MIT, Apache-2.0, CC BY and CC BY-SA",
        "method": f"logistic regression, L2 {DECAY}, Platt; mean FPR {MAX_FPR} on calibration",
    }
    return Head(**{**vars(head), "card": card})


def held_out(cases: list[Case], general: list[Text], data: Path) -> list[dict[str, str | int]]:
    """The items that ship with the benchmark."""
    rows: list[dict[str, str | int]] = []

    def add(source: str, private: int, texts: list[str]) -> None:
        rows.extend({"source": source, "private": private, "text": t} for t in texts)

    mine = [c for c in cases if c.split == "test"]
    add("privacylens_cases", 1, [c.text for c in mine])
    add("privacylens_stories", 1, [c.story for c in mine])
    add("privacylens_statements", 1, [i for c in mine for i in c.items])
    for source, texts in by_source(confaide(data), "test").items():
        add(source, 1, texts)
    for source, texts in by_source(general, "test").items():
        if source in ("self_instruct", "mt_bench", "ifeval"):
            add(source, 0, texts)
        elif source in ("gsm8k", "pubmedqa"):
            add(source, 0, texts[:100])
    for language in ("en", "zh"):
        add(f"templates_{language}", 1, template_texts("private", language, "test", 4))
        add(f"templates_{language}", 0, template_texts("general", language, "test", 4))
    return rows


def report(detector: SemanticDetector, sets: dict[str, list[str]], name: str) -> None:
    """Print the share of each source at or above the threshold."""
    for source, texts in sets.items():
        hits = sum(detector.probability(t) >= detector.threshold for t in texts)
        print(f"{name:12} {source:24} {hits:5} of {len(texts):5} = {hits / len(texts):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache/floe")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--test", action="store_true", help="also the held-out split, all sources")
    args = parser.parse_args()
    pulled = ensure("wordllama-256", home=args.home)
    embed = StaticEmbedding(
        weights=pulled.files["weights"], tokenizer=pulled.files["tokenizer"], digest=pulled.digest
    )
    cases, general = privacy_lens(args.data), negatives(args.data)
    rows = training_rows(cases, general)
    private, plain = calibration_sets(cases, general)
    head = with_card(calibrated(learn(rows, embed), private, plain, embed), rows)
    detector = SemanticDetector(encoder=embed, head=head)
    print(Counter(c.split for c in cases), f"threshold {head.threshold:.3f}")
    report(detector, private, "cal private")
    report(detector, plain, "cal general")
    if args.write:
        HEAD.parent.mkdir(exist_ok=True)
        save_head(head, HEAD)
        HELD_OUT.parent.mkdir(exist_ok=True)
        lines_ = [json.dumps(r, ensure_ascii=False) for r in held_out(cases, general, args.data)]
        HELD_OUT.write_bytes(gzip.compress("\n".join(lines_).encode(), mtime=0))
    if args.test:
        tests: dict[str, list[str]] = {}
        for row in held_out(cases, general, args.data):
            if row["private"]:
                tests.setdefault(str(row["source"]), []).append(str(row["text"]))
        report(detector, tests, "private")
        plain = by_source(general, "test")
        for language in ("en", "zh"):
            plain[f"templates_{language}"] = template_texts("general", language, "test", 4)
        report(detector, plain, "general")


if __name__ == "__main__":
    main()
