"""FLAP's own allocation (AAAI 2024): one threshold on standardized importances, no search."""

from __future__ import annotations

from collections.abc import Sequence

from floe.tailoring.base import LayerImportance
from floe.tailoring.genes import Levels
from floe.tailoring.search.allocate import by_threshold
from floe.tailoring.search.started import Started
from floe.tailoring.space import Space


class FlapSearch(Started):
    """One plan from the importances it was given, asked again and again."""

    name = "flap"

    def __init__(
        self,
        *,
        space: Space,
        seed: int,
        importances: Sequence[LayerImportance],
        seeds: Sequence[Levels] = (),
    ) -> None:
        """`importances` of FLAP's criterion, one a layer."""
        super().__init__(space=space, seed=seed, seeds=seeds)
        start = list(space.highest)
        for i, gene in enumerate(space.genes):
            if gene.kind == "importance" and "flap" in gene.options:
                start[i] = gene.options.index("flap")
        self._plan = by_threshold(space, importances, standardized=True, start=tuple(start))

    def _propose(self) -> Levels:
        return self._plan
