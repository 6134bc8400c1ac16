"""Embeddings of the prompts that `floe bench routing` tells apart; no text is stored.

    python scripts/routing_vectors.py --data shared/data --out src/floe/evaluation/routing_data

Seven domains: GSM8K, MBPP, PubMedQA, law (LegalBench), TAT-QA, geography (MMLU; world history is
not among the stored subjects) and IFEval, 100 training and up to 100 held-out prompts each, parted
as for the adapters where there are adapters. The 24 instruction-induction tasks, up to 100
training inputs (`induce`) and up to 20 held-out ones (`execute`), in two forms: the bare input, and
the input after three solved examples from `induce`, as a user without instructions would ask.

Legend: N prompts, W width of the embedding.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from adapter_data import SOURCES, split
from numpy.typing import NDArray

from floe.assemble import open_embedding
from floe.core.config import home
from floe.evaluation.machine import today, versions
from floe.routing.embed import StaticEmbedding

SEED, TRAIN, HELD_OUT, TASK_HELD_OUT, SHOTS = 17, 100, 100, 20, 3
Parts = dict[str, tuple[list[str], list[str]]]


def domains(data: Path) -> Parts:
    out: Parts = {}
    for source in SOURCES:
        parts = split(list(source.load(data)), seed=SEED, n_held_out=96, n_validation=32)
        out[source.name] = ([e.prompt for e in parts.train], [e.prompt for e in parts.held_out])
    path = data / "mmlu" / "general" / "high_school_geography_test.csv"
    with path.open(encoding="utf-8", newline="") as file:
        out["geography"] = halves([row["question"] for row in csv.DictReader(file)])
    path = data / "instructions" / "ifeval_input_data.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    out["ifeval"] = halves([row["prompt"] for row in rows])
    for train, held_out in out.values():
        random.Random(SEED).shuffle(train)
        del train[TRAIN:], held_out[HELD_OUT:]
    return out


def halves(texts: list[str]) -> tuple[list[str], list[str]]:
    random.Random(SEED).shuffle(texts)
    return texts[:TRAIN], texts[TRAIN:]


def tasks(data: Path, *, shots: int) -> Parts:
    out: Parts = {}
    folder = data / "instruction_induction"
    for path in sorted((folder / "induce").glob("*.json")):
        rng = random.Random(f"{SEED} {path.stem} {shots}")
        known = [pair(e) for e in examples(path)]
        asked = [pair(e) for e in examples(folder / "execute" / path.name)]
        rng.shuffle(known)
        rng.shuffle(asked)

        def shown(
            query: tuple[str, str],
            known: list[tuple[str, str]] = known,
            rng: random.Random = rng,
        ) -> str:
            if not shots:
                return query[0]
            solved = rng.sample([k for k in known if k != query], shots)
            told = "".join(f"Input: {i}\nOutput: {o}\n\n" for i, o in solved)
            return f"{told}Input: {query[0]}\nOutput:"

        out[path.stem] = (
            [shown(q) for q in known[:TRAIN]],
            [shown(q) for q in asked[:TASK_HELD_OUT]],
        )
    return out


def examples(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["examples"].values())


def pair(example: dict[str, Any]) -> tuple[str, str]:
    if "cause" in example:
        both = sorted([example["cause"], example["effect"]])
        return f"Sentence 1: {both[0]} Sentence 2: {both[1]}", example["cause"]
    if "items" in example:
        return ", ".join(example["items"]), example["concept"]
    return str(example["input"]), str(example["output"])


def stored(parts: Parts, embedding: StaticEmbedding) -> dict[str, NDArray[Any]]:
    """Centroids from the training prompts, and the held-out prompts' embeddings in int8."""
    names = sorted(parts)
    train = [np.array([embedding(t) for t in parts[n][0]], dtype=np.float64) for n in names]
    held = [np.array([embedding(t) for t in parts[n][1]], dtype=np.float64) for n in names]
    middles = np.array([rows.mean(axis=0) for rows in train])
    held_NW = np.concatenate(held)
    largest_N = np.abs(held_NW).max(axis=1, keepdims=True)
    return {
        "centroids": (middles / np.linalg.norm(middles, axis=1, keepdims=True)).astype("f2"),
        "vectors": np.rint(127 * held_NW / np.maximum(largest_N, 1e-9)).astype("i1"),
        "labels": np.repeat(np.arange(len(names)), [len(h) for h in held]).astype("i2"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    embedding = open_embedding(home=home())
    sets = {
        "domains": domains(args.data),
        "tasks": tasks(args.data, shots=0),
        "tasks_shown": tasks(args.data, shots=SHOTS),
    }
    arrays = {
        f"{kind}_{name}": table
        for kind, parts in sets.items()
        for name, table in stored(parts, embedding).items()
    }
    np.savez_compressed(args.out / "route_vectors.npz", **arrays)
    card = {
        "what": "centroids of training prompts and int8 embeddings of held-out prompts",
        "command": "python scripts/routing_vectors.py --data shared/data --out "
        "src/floe/evaluation/routing_data",
        "made_at": today(),
        **versions(llama_build=None),
        "encoder_digest": embedding.digest,
        "seed": SEED,
        "names": {kind: sorted(parts) for kind, parts in sets.items()},
        "held_out": {kind: len(arrays[f"{kind}_labels"]) for kind in sets},
        "data": {
            **{s.name: f"{s.data}; {s.licence}; {s.attribution}" for s in SOURCES},
            "geography": "MMLU high_school_geography test (Hendrycks et al.), MIT, from "
            "HaeChan0305/MLILAB-FedLLM, commit d92730e8bacd7b3a61e551e015e40588e10234b4",
            "ifeval": "IFEval prompts (Google), josejg/instruction_following_eval, commit "
            "0c495b2f95155e8b10acb919ae283bfb4d5be6e2, Apache-2.0",
            "tasks": "orhonovich/instruction-induction, commit "
            "f7304ae0a35239c9819a08f93fd58426f6b4e4c1, Apache-2.0; Honovich et al., 2022",
        },
    }
    (args.out / "route_vectors.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
