"""Plans of heuristics that searches start with; each costs an evaluation when it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from floe.tailoring.base import LayerImportance
from floe.tailoring.genes import Levels
from floe.tailoring.search.allocate import by_depth, by_threshold
from floe.tailoring.space import Space

SEEDS = ("flap", "depth", "uniform", "taylor")


def heuristic_seeds(
    space: Space, importances: Mapping[str, Sequence[LayerImportance]]
) -> tuple[Levels, ...]:
    """One plan for each of `SEEDS` whose importance is there, without doubles.

    All are inside the budgets: FLAP's allocation, depth by block influence with the rest of the
    room used, uniform, and Taylor's scores by parameter. They name FLAP's criterion (with its
    compensation) where the space has it, else its first. Where types are chosen too, FLAP's
    allocation is there with many, fewer and fewest bits.
    """
    most, *fewer = _starts(space)
    found: list[Levels] = []
    asked = [(SEEDS[0], most), *((SEEDS[0], s) for s in fewer), *((n, most) for n in SEEDS[1:])]
    for name, start in asked:
        made = _seed(name, space, importances, start)
        if made is not None and made not in found:
            found.append(made)
    return tuple(found)


def _seed(
    name: str,
    space: Space,
    importances: Mapping[str, Sequence[LayerImportance]],
    start: Levels,
) -> Levels | None:
    flap, taylor = importances.get("flap"), importances.get("taylor")
    blocks = importances.get("block-influence")
    if name == "uniform":
        return space.repair_levels(start)
    if name == "flap" and flap is not None:
        return by_threshold(space, flap, standardized=True, start=start)
    if name == "taylor" and taylor is not None:
        return by_threshold(space, taylor, standardized=False, start=start)
    if name == "depth" and blocks is not None:
        return by_depth(space, blocks, fill=True, start=start)
    return None


def _starts(space: Space) -> list[Levels]:
    """Whole plans by the criterion: all types with most bits, then half-way, then with fewest."""
    out: list[Levels] = []
    for share in (1.0, 0.5, 0.0):
        levels = list(space.highest)
        for i, gene in enumerate(space.genes):
            if gene.kind == "quant":
                levels[i] = round(share * gene.top)
            if gene.kind == "importance":
                levels[i] = gene.options.index("flap") if "flap" in gene.options else 0
        if tuple(levels) not in out:
            out.append(tuple(levels))
    return out
