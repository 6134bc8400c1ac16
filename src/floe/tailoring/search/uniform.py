"""The same share of every layer, once for each criterion and type: no search at all."""

from __future__ import annotations

import itertools

from floe.tailoring.genes import Levels
from floe.tailoring.search.started import Started


class UniformSearch(Started):
    """Goes through the criteria (and quantization types) in order, then begins again."""

    name = "uniform"

    _turn = 0

    def _propose(self) -> Levels:
        genes = self.space.genes
        named = [i for i, g in enumerate(genes) if not g.is_width]
        every = list(itertools.product(*(range(genes[i].top, -1, -1) for i in named)))
        chosen = dict(zip(named, every[self._turn % len(every)], strict=True))
        self._turn += 1
        return self.space.repair_levels([chosen.get(i, g.top) for i, g in enumerate(genes)])
