"""Plans from importances alone, without an evaluation: what heuristics would build.

Legend: K KV heads, G query heads of a KV head, F FFN channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from floe.tailoring.base import LayerImportance
from floe.tailoring.genes import Gene, Levels
from floe.tailoring.space import Space

Floats = NDArray[np.float64]
_STEPS = 60


def by_threshold(
    space: Space,
    importances: Sequence[LayerImportance],
    *,
    standardized: bool,
    start: Levels | None = None,
) -> Levels:
    """One threshold for all units of the model: what is more important stays.

    `standardized` is FLAP's own allocation: scores are compared after each half of each layer was
    brought to mean 0 and deviation 1, by unit. Else raw scores are compared by parameter, which
    suits first-order (Taylor) scores. Types and criterion are those of `start`.
    """
    base = start or space.highest
    values = [_values(g, importances, standardized=standardized) for g in space.genes]
    sizes = [_sizes(space, g, by_unit=standardized) for g in space.genes]

    def chosen(price: float) -> Levels:
        return tuple(
            int(np.argmax(v - price * s)) if g.is_width else n
            for g, v, s, n in zip(space.genes, values, sizes, base, strict=True)
        )

    # With a price for size, each half takes what is worth it: the threshold is the price.
    return space.repair_levels(_cheapest(space, chosen, values, sizes))


def by_depth(
    space: Space,
    importances: Sequence[LayerImportance],
    *,
    fill: bool = False,
    start: Levels | None = None,
) -> Levels:
    """Whole layers go, the least block influence first, until the budgets hold (ShortGPT).

    With `fill`, the last one that went comes back as far as it fits, and the rest of the room is
    used.
    """
    current = list(start or space.highest)
    last: list[tuple[int, int]] = []
    for unit in _layer_units(space, importances):
        if space.fits(tuple(current)):
            break
        last = [(i, current[i]) for i in unit]
        for i in unit:
            current[i] = 0
    if not fill:
        return space.repair_levels(current, fill=False)
    for i, level in last:  # a part of what went last comes back
        for n in range(1, level + 1):
            tried = [*current[:i], n, *current[i + 1 :]]
            if not space.fits(tuple(tried)):
                break
            current = tried
    return space.repair_levels(current)


def _layer_units(space: Space, importances: Sequence[LayerImportance]) -> list[list[int]]:
    droppable: dict[int, list[int]] = {}
    for i, gene in enumerate(space.genes):
        if gene.is_width and gene.options[0] in (0, (0, 0)):
            droppable.setdefault(gene.layer, []).append(i)
    whole = [layer for layer, genes in droppable.items() if len(genes) == 2]
    return [droppable[n] for n in sorted(whole, key=lambda n: importances[n].block)]


def _cheapest(
    space: Space,
    chosen: Callable[[float], Levels],
    values: Sequence[Floats],
    sizes: Sequence[Floats],
) -> Levels:
    """The levels of the lowest price at which the budgets hold."""
    slopes = [
        (v[1:] - v[:-1]) / np.maximum(s[1:] - s[:-1], 1e-12)
        for v, s in zip(values, sizes, strict=True)
        if len(v) > 1 and s[-1] > 0
    ]
    every = np.concatenate(slopes)
    low, high = float(every.min()) - 1e-9, float(every.max()) + 1e-9
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if space.fits(chosen(middle)) else (middle, high)
    return chosen(high)


def _sizes(space: Space, gene: Gene, *, by_unit: bool) -> Floats:
    """Size of each option: parameters, or units (query heads, channels)."""
    out = []
    for option in gene.options:
        if isinstance(option, tuple):
            kv, q = option
            heads = 2 * kv * q + 2 * kv
            out.append(kv * q if by_unit else heads * space.shape.head_width * space.shape.width)
        elif isinstance(option, int):
            out.append(option if by_unit else 3 * option * space.shape.width)
        else:
            out.append(0)
    return np.asarray(out, dtype=np.float64)


def _values(gene: Gene, importances: Sequence[LayerImportance], *, standardized: bool) -> Floats:
    """What each option keeps of the importance."""
    if not gene.is_width:
        return np.zeros(len(gene.options))
    one = importances[gene.layer]
    scores = one.q_KG if gene.kind == "attention" else one.ffn_F
    if standardized:
        scores = (scores - scores.mean()) / (scores.std() + 1e-12)
    if gene.kind == "ffn":
        kept = np.concatenate([[0.0], np.cumsum(np.sort(scores)[::-1])])
        return np.asarray([kept[o] for o in gene.options if isinstance(o, int)])
    return np.asarray([_kept(scores, one.kv_K, o) for o in gene.options if isinstance(o, tuple)])


def _kept(q_KG: Floats, kv_K: Floats, option: tuple[int, int]) -> float:
    groups = np.argsort(-kv_K, kind="stable")[: option[0]]
    return float(np.sort(q_KG[groups], axis=1)[:, ::-1][:, : option[1]].sum())
