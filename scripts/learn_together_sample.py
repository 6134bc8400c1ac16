"""The examples of `learn_together.py`, drawn from the data sets that the shipped adapters know.

    python scripts/learn_together_sample.py --data shared/data

Writes scripts/learn_together_data/DOMAIN.jsonl: short examples in three parts that share no
document. `train` goes to the devices, `public` is what everybody may see, `held_out` is for the
end. Licences: scripts/learn_together_data/LICENCES.md.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from adapter_data import SOURCES, Example, split

DOMAINS = ("code", "law", "maths", "medicine")
SEED, MAX_CHARS = 29, 400
COUNT = {"train": 56, "public": 6, "held_out": 8}
OUT = Path(__file__).parent / "learn_together_data"


def parts(examples: list[Example]) -> dict[str, list[Example]]:
    found = split(examples, seed=SEED, n_held_out=120, n_validation=120)
    out = {"train": found.train, "public": found.validation, "held_out": found.held_out}
    for name, rows in out.items():
        short = [e for e in rows if len(e.prompt) + len(e.answer) <= MAX_CHARS]
        random.Random(SEED).shuffle(short)
        if len(short) < COUNT[name]:
            raise SystemExit(f"{len(short)} short examples are too few for {name}")
        out[name] = short[: COUNT[name]]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for source in SOURCES:
        if source.name not in DOMAINS:
            continue
        lines = [
            json.dumps({"part": part, "prompt": e.prompt, "answer": e.answer}, ensure_ascii=False)
            for part, rows in parts(list(source.load(args.data))).items()
            for e in rows
        ]
        (OUT / f"{source.name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
