"""Random plans inside the budgets: what every other search must beat."""

from __future__ import annotations

from floe.tailoring.genes import Levels
from floe.tailoring.search.started import Started


class RandomSearch(Started):
    """Draws from `Space.random`; with seeds, it starts with them."""

    name = "random"

    def _propose(self) -> Levels:
        return self.space.random(self.rng)
