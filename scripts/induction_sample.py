"""Make the sample of Instruction Induction that `floe bench federated` trains and judges on.

    python scripts/induction_sample.py --data shared/data --out src/floe/evaluation/data

Apache-2.0, Honovich et al., 2022 (orhonovich/instruction-induction). Of each task: up to 160
examples of `induce` to train on, up to 48 of `execute` to judge by, none longer than 160
characters, inputs of one side never on the other; drawn by a seed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from pathlib import Path
from typing import Any

SEED, TRAIN, HELD_OUT, LONGEST = 7, 160, 48, 160


def pair(example: dict[str, Any]) -> tuple[str, str]:
    """Input and output; two tasks write them otherwise."""
    if "cause" in example:
        sentences = sorted([example["cause"], example["effect"]])
        return " ".join(sentences), example["cause"]
    if "concept" in example:
        return ", ".join(example["items"]), example["concept"]
    return example["input"], example["output"]


def pairs(path: Path) -> list[tuple[str, str]]:
    examples = json.loads(path.read_text(encoding="utf-8"))["examples"].values()
    found = dict(pair(e) for e in examples)
    return [(a, b) for a, b in found.items() if len(a) + len(b) <= LONGEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    folder = args.data / "instruction_induction"
    tasks = {}
    for path in sorted((folder / "induce").glob("*.json")):
        rng = random.Random(f"{SEED}:{path.stem}")
        held_out = pairs(folder / "execute" / path.name)
        inputs = {a for a, _ in held_out}
        train = [p for p in pairs(path) if p[0] not in inputs]
        rng.shuffle(train)
        rng.shuffle(held_out)
        tasks[path.stem] = {"train": train[:TRAIN], "held_out": held_out[:HELD_OUT]}
    data = json.dumps(tasks, ensure_ascii=False, sort_keys=True).encode()
    (args.out / "instruction_induction.json.xz").write_bytes(lzma.compress(data, preset=9))
    licence = (folder / "LICENSE").read_bytes()
    (args.out / "instruction_induction.LICENSE").write_bytes(licence)


if __name__ == "__main__":
    main()
