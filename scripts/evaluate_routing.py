"""How well the router tells the shipped adapters' topics apart, and from everything else.

    python scripts/evaluate_routing.py --data shared/data
    python scripts/evaluate_routing.py --data shared/data --write src/floe

The second form also writes what the figures are based on: `routing/background.json`,
`routing/context_basis.npz` (what the learner sees of a prompt), `routing/general.npz` (what general
prompts look like) and, with --centroids, `centroid.json` in the folder of each shipped adapter
(`train_adapters.py` writes those from the examples that it really used).

Temperature and threshold are chosen on validation prompts of the adapters' data and on one half
of the general prompts; every figure printed under "held_out" comes from prompts that neither the
centroids nor this choice have seen. Prints JSON.

Legend: N prompts, K adapters, D width.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from adapter_data import SOURCES, split
from numpy.typing import NDArray

from floe.core.adapter import Centroid
from floe.core.config import home
from floe.core.sections import RoutingConfig
from floe.models.pull import ensure
from floe.routing.centroid import centroid_of
from floe.routing.embed import StaticEmbedding, shipped_background
from floe.routing.features import basis_of
from floe.routing.gate import gate
from floe.routing.general import DIRECTIONS, General, directions_of, shipped_general

SEED, HELD_OUT, VALIDATION = 17, 96, 32
BASIS_WIDTH, BASIS_PROMPTS = 64, 240
TEMPERATURES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2)
THRESHOLDS = tuple(round(0.1 + 0.01 * i, 2) for i in range(41))
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Cosines (N, K) of prompts of one kind; `label` is their adapter's index, None = general.

    `raised` (N,): how much the threshold is raised for each by what general prompts look like.
    """

    name: str
    cos: Array
    label: int | None
    raised: Array


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def general(data: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """General prompts: (to choose by, held out), from different sources or seeded halves."""
    folder = data / "instructions"
    tasks = []
    for name in ("self_instruct_seed_tasks.jsonl", "self_instruct_user_oriented.jsonl"):
        for row in read_lines(folder / name):
            tasks.append(f"{row['instruction']}\n\n{row['instances'][0]['input']}".strip())
    random.Random(SEED).shuffle(tasks)
    half = len(tasks) // 2
    bench = [
        row["turns"][0]
        for row in read_lines(folder / "mt_bench_question.jsonl")
        if row["category"] in ("writing", "roleplay", "humanities")
    ]
    constrained = [row["prompt"] for row in read_lines(folder / "ifeval_input_data.jsonl")]
    choose = {"self_instruct": tasks[:half], "wikitext": paragraphs(data / "wikitext2/valid.txt")}
    held_out = {
        "self_instruct": tasks[half:],
        "wikitext": paragraphs(data / "wikitext2/test.txt"),
        "ifeval": constrained,
        "mt_bench_writing_roleplay_humanities": bench,
    }
    return choose, held_out


def paragraphs(path: Path, *, count: int = 213) -> list[str]:
    """The first long paragraphs of a WikiText file."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if len(line) > 200][:count]


def cosines(texts: list[str], embedding: StaticEmbedding, centroids_KD: Array) -> Array:
    return np.array([embedding(text) for text in texts]).astype(np.float64) @ centroids_KD.T


def choose(prompts: list[Prompts]) -> RoutingConfig:
    """Temperature: the likeliest labels. Threshold: most right, least wrong (Youden's index)."""
    own = [p for p in prompts if p.label is not None]
    others = [p for p in prompts if p.label is None]

    def log_likelihood(temperature: float) -> float:
        return float(np.mean([np.mean(log_shares(p.cos, temperature)[:, p.label]) for p in own]))

    def index(threshold: float) -> float:
        right = np.mean([np.mean(p.cos.max(1) >= threshold + p.raised) for p in own])
        wrong = np.mean([np.mean(p.cos.max(1) >= threshold + p.raised) for p in others])
        return float(right - wrong)

    return RoutingConfig(
        temperature=max(TEMPERATURES, key=log_likelihood), threshold=max(THRESHOLDS, key=index)
    )


def log_shares(cos: Array, temperature: float) -> Array:
    scaled = (cos - cos.max(1, keepdims=True)) / temperature
    return np.asarray(scaled - np.log(np.exp(scaled).sum(1, keepdims=True)))


def figures(prompts: Prompts, config: RoutingConfig) -> dict[str, float | int]:
    gated = [
        gate(
            row.tolist(),
            temperature=config.temperature,
            top_k=config.top_k,
            threshold=config.threshold + raised,
            min_share=config.min_share,
        ).shares
        for row, raised in zip(prompts.cos, prompts.raised.tolist(), strict=True)
    ]
    routed = np.array([bool(shares) for shares in gated])
    result: dict[str, float | int] = {"n": len(gated), "routed": share(routed)}
    if prompts.label is not None:
        first = np.array([bool(s) and s[0][0] == prompts.label for s in gated])
        among = np.array([any(k == prompts.label for k, _ in s) for s in gated])
        result |= {
            "nearest_is_right": share(prompts.cos.argmax(1) == prompts.label),
            "largest_share_is_right": share(first),
            "right_among_chosen": share(among),
            "to_another_only": share(routed & ~among),
        }
    result["mixed"] = share(np.array([len(shares) > 1 for shares in gated]))
    return result


def share(values: NDArray[np.bool_]) -> float:
    return round(float(np.mean(values)), 3)


def make_background(texts: dict[str, list[str]], raw: StaticEmbedding) -> Centroid:
    """The mean unit vector of general texts, each kind counting the same."""
    means_D = [
        np.mean([raw(t).astype(np.float64) for t in kind], axis=0) for kind in texts.values()
    ]
    vector = tuple(round(float(x), 7) for x in np.mean(means_D, axis=0))
    return Centroid(encoder_digest=raw.digest, vector=vector)


def write_background(package: Path, background: Centroid) -> None:
    made_from = (
        "mean unit vector of one half of self-instruct's instructions and of the first long "
        "paragraphs of WikiText-2 valid; written by scripts/evaluate_routing.py"
    )
    text = json.dumps({"made_from": made_from} | vars_of(background)) + "\n"
    (package / "routing" / "background.json").write_text(text, encoding="utf-8")


def write_centroids(package: Path, centroids: dict[str, Centroid]) -> None:
    for name, centroid in centroids.items():
        folder = package / "adapters" / "shipped" / name
        if folder.is_dir():
            path = folder / "centroid.json"
            old = json.loads(path.read_text("utf-8")) if path.exists() else {}
            path.write_text(json.dumps(old | vars_of(centroid)) + "\n", encoding="utf-8")
        else:
            print(f"no folder {folder}: centroid not written", file=sys.stderr)


def write_basis(package: Path, embedding: StaticEmbedding, kinds: list[list[str]]) -> None:
    """Directions in which training prompts differ most, each kind with at most as many prompts."""
    rows_NW = [embedding(text) for texts in kinds for text in texts[:BASIS_PROMPTS]]
    basis_WD = basis_of(np.array(rows_NW, dtype=np.float64), BASIS_WIDTH)
    np.savez_compressed(
        package / "routing" / "context_basis.npz",
        basis_WD=basis_WD.astype(np.float16),
        encoder_digest=np.array(embedding.digest),
    )


def write_general(package: Path, embedding: StaticEmbedding, texts: dict[str, list[str]]) -> None:
    """The middles of clusters of one half of the general prompts."""
    rows_NW = np.array([embedding(t) for kind in texts.values() for t in kind], dtype=np.float64)
    np.savez_compressed(
        package / "routing" / "general.npz",
        directions_GW=directions_of(rows_NW, DIRECTIONS, seed=0).astype(np.float16),
        encoder_digest=np.array(embedding.digest),
    )


def vars_of(centroid: Centroid) -> dict[str, Any]:
    return {"encoder_digest": centroid.encoder_digest, "vector": list(centroid.vector)}


def open_embedding(args: argparse.Namespace, texts: dict[str, list[str]]) -> StaticEmbedding:
    """With the background that ships, a new one (--write), or none (--raw)."""
    pulled = ensure("wordllama-256", home=home())
    places = {"weights": pulled.files["weights"], "tokenizer": pulled.files["tokenizer"]}
    raw = StaticEmbedding(digest=pulled.digest, **places)
    if args.raw:
        return raw
    if args.write:
        write_background(args.write, make_background(texts, raw))
    background = shipped_background(pulled.digest)
    return StaticEmbedding(digest=pulled.digest, background=background, **places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", type=Path, metavar="PACKAGE", help="src/floe")
    parser.add_argument("--centroids", action="store_true", help="write the adapters' centroids")
    parser.add_argument("--fixed", action="store_true", help="the same threshold for every prompt")
    parser.add_argument("--raw", action="store_true", help="without background")
    parser.add_argument("--temperature", type=float, help="instead of the chosen one")
    parser.add_argument("--threshold", type=float, help="instead of the chosen one")
    args = parser.parse_args()
    general_choose, general_held_out = general(args.data)
    embedding = open_embedding(args, general_choose)
    splits = {
        s.name: split(
            list(s.load(args.data)), seed=SEED, n_held_out=HELD_OUT, n_validation=VALIDATION
        )
        for s in SOURCES
    }
    centroids = {
        name: centroid_of([t for e in parts.train for t in sorted({e.prompt, e.short})], embedding)
        for name, parts in splits.items()
    }
    if args.write:
        if args.centroids:
            write_centroids(args.write, centroids)
        write_general(args.write, embedding, general_choose)
        trained = [[e.prompt for e in parts.train] for parts in splits.values()]
        write_basis(args.write, embedding, [*trained, *general_choose.values()])
    centroids_KD = np.array([c.vector for c in centroids.values()])
    directions = General() if args.fixed else shipped_general(embedding.digest)

    def kind(name: str, texts: list[str], label: int | None) -> Prompts:
        raised = np.array([directions.threshold(embedding(text), 0.0) for text in texts])
        cos = cosines(texts, embedding, centroids_KD)
        return Prompts(name=name, cos=cos, label=label, raised=raised)

    seen, unseen = [], []
    for index, (name, parts) in enumerate(splits.items()):
        for form in ("prompt", "short"):  # with its context, and the bare question
            shown = name if form == "prompt" else f"{name} (bare question)"
            seen.append(kind(shown, [getattr(e, form) for e in parts.validation], index))
            unseen.append(kind(shown, [getattr(e, form) for e in parts.held_out], index))
    seen += [kind(name, texts, None) for name, texts in general_choose.items()]
    unseen += [kind(name, texts, None) for name, texts in general_held_out.items()]
    chosen = choose(seen)
    config = replace(
        chosen,
        temperature=args.temperature or chosen.temperature,
        threshold=args.threshold or chosen.threshold,
    )
    report = {
        "chosen": {"temperature": chosen.temperature, "threshold": chosen.threshold},
        "used": asdict(config),
        "background": not args.raw,
        "held_out": {p.name: figures(p, config) for p in unseen},
        "mean_held_out": means(unseen, config),
    }
    print(json.dumps(report, indent=1))


def means(prompts: list[Prompts], config: RoutingConfig) -> dict[str, float]:
    """Over kinds of prompts, each counting the same."""
    own = [figures(p, config) for p in prompts if p.label is not None]
    others = [figures(p, config) for p in prompts if p.label is None]
    names = ("nearest_is_right", "largest_share_is_right", "right_among_chosen", "to_another_only")
    result = {name: round(float(np.mean([f[name] for f in own])), 3) for name in names}
    result["general_wrongly_routed"] = round(float(np.mean([f["routed"] for f in others])), 3)
    return result


if __name__ == "__main__":
    main()
