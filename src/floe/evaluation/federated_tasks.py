"""Devices with known tasks: Instruction Induction's 24 (Honovich et al., Apache-2.0), in a sample.

Nobody says what the task is: the same word has another right answer on another device, so that one
adapter for all cannot serve them (`scripts/induction_sample.py` made the sample).
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from floe.federated.examples import Example

MEASURED = (
    "antonyms", "translation_en-de", "letters_list", "num_to_verbal",
    "singular_to_plural", "first_word_letter", "synonyms", "sum",
)  # fmt: skip
"""The tasks of the losses; a quick form takes the first ones."""
OTHERS = (
    "active_to_passive", "diff", "larger_animal", "negation", "rhymes", "second_word_letter",
    "sentiment", "translation_en-fr",
)  # fmt: skip
"""The tasks that settings were chosen on; none of their examples is measured."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Examples to train on and others, from another file of the set, to judge by."""

    name: str
    train: tuple[Example, ...]
    held_out: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class Client:
    """A device: most of its examples are of `task`; the rest, `mixed` of them, of any other."""

    name: str
    task: str
    rank: int
    train: tuple[Example, ...]
    mixed: int


@cache
def tasks() -> dict[str, Task]:
    """Every task of the sample by name."""
    packed = (files("floe.evaluation") / "data" / "instruction_induction.json.xz").read_bytes()
    return {
        name: Task(
            name=name,
            train=tuple(Example.of(a, b) for a, b in sides["train"]),
            held_out=tuple(Example.of(a, b) for a, b in sides["held_out"]),
        )
        for name, sides in sorted(json.loads(lzma.decompress(packed)).items())
    }


def clients(
    names: Sequence[str],
    *,
    per_task: int,
    ranks: Sequence[int],
    examples: tuple[int, int],
    mixed_share: float,
    seed: int,
) -> tuple[Client, ...]:
    """`per_task` devices for each task, of different sizes within `examples`, sharing no example.

    Ranks go round the devices. `mixed_share` of a device's examples are of other tasks.

    Raises:
        ValueError: a task has too few examples for that.
    """
    rng, known, out = random.Random(seed), tasks(), []
    pools = {name: rng.sample(known[name].train, len(known[name].train)) for name in names}
    for place, (name, n) in enumerate((name, n) for name in names for n in range(per_task)):
        size = rng.randint(*examples)
        mixed = round(size * mixed_share)
        others = [o for o in names if o != name]
        sources = [name] * (size - mixed) + [rng.choice(others) for _ in range(mixed)]
        if any(len(pools[s]) < sources.count(s) for s in set(sources)):
            raise ValueError(f"task {name} has too few examples for {per_task} devices")
        out.append(
            Client(
                name=f"{name}-{n}",
                task=name,
                rank=ranks[place % len(ranks)],
                train=tuple(pools[s].pop() for s in sources),
                mixed=mixed,
            )
        )
    return tuple(out)
