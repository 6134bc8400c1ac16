"""A synthetic Chinese and mixed set with labelled places, made from frames by a seed.

Frames to tune on and frames to measure on are two files that share none; so do the names, roads,
cities and companies that fill them. All values are random, in public formats.
"""

from __future__ import annotations

import random
import re
from functools import cache
from importlib.resources import files
from typing import Literal

from floe.evaluation.privacy_sets import Example, Place
from floe.evaluation.privacy_zh_values import PRIVATE, PUBLIC, TEST, TRAIN, Pools

Split = Literal["train", "test"]
_SLOT = re.compile(r"\{([a-z]+[0-9]*)\}")


@cache
def frames(split: Split) -> tuple[str, ...]:
    """The sentence frames of one side, "{slot}" where a value goes."""
    path = files("floe.evaluation") / "data" / f"privacy_zh_{split}.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(line[2:] for line in lines if line[:2] in ("+ ", "- "))


def examples(split: Split, *, n: int, seed: int) -> list[Example]:
    """`n` examples, every frame as often as any other (within one), in a random order.

    The same arguments give the same examples.
    """
    rng = random.Random(f"{split} {seed}")
    pools = TRAIN if split == "train" else TEST
    every = frames(split)
    order = [i % len(every) for i in range(n - n % len(every))]
    order += rng.sample(range(len(every)), n % len(every))
    rng.shuffle(order)
    return [_filled(every[i], i, rng, pools) for i in order]


def _filled(frame: str, number: int, rng: random.Random, pools: Pools) -> Example:
    out, places, at, length = [], [], 0, 0
    for match in _SLOT.finditer(frame):
        slot = match.group(1)
        entity, make = PRIVATE[slot] if slot in PRIVATE else ("", PUBLIC[slot])
        value = make(rng, pools)
        length += match.start() - at
        if entity:
            places.append(Place(entity=entity, start=length, end=length + len(value)))
        out += [frame[at : match.start()], value]
        at, length = match.end(), length + len(value)
    return Example(text="".join([*out, frame[at:]]), places=tuple(places), frame=number)
