"""Examples as token ids, and the order in which training sees them.

The order depends on the lengths and the seed alone, so a run that resumes draws it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from floe.core.errors import BadRequest
from floe.federated.examples import Example

Encode = Callable[[Example], "Row"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """An example as ids; the last `n_answer` of them are learned."""

    ids: tuple[int, ...] = field(repr=False)
    n_answer: int


def rows_of(
    examples: Sequence[Example], encode: Encode, *, max_tokens: int
) -> tuple[tuple[Row, ...], int]:
    """Rows of at most `max_tokens`, and how many examples were longer and left out.

    Raises:
        BadRequest: there is no example, or each one is longer.
    """
    if not examples:
        raise BadRequest("there is no example to train on or to judge by", param="examples")
    rows = [encode(e) for e in examples]
    kept = tuple(r for r in rows if len(r.ids) <= max_tokens)
    if not kept:
        raise BadRequest(
            f"each of the {len(rows)} examples is longer than {max_tokens} tokens; raise "
            "max_tokens or shorten them",
            param="examples",
        )
    return kept, len(rows) - len(kept)


def batches(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Neighbours in length together, so that little is padded; the last one may be smaller."""
    ordered = sorted(rows, key=lambda r: len(r.ids))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def epochs(rows: Sequence[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Batches of `size` without end: shuffled, sorted by length within ten, shuffled again.

    Incomplete batches are left out, in each epoch others; of fewer rows than `size`, all are one.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("no rows to draw batches from")
    size = min(size, len(rows))
    rng = random.Random(seed)
    while True:
        order = rng.sample(list(rows), len(rows))
        chunks = [order[i : i + 10 * size] for i in range(0, len(order), 10 * size)]
        out = [b for c in chunks for b in batches(c, size) if len(b) == size]
        rng.shuffle(out)
        yield from out
