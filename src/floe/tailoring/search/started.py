"""What all searches share: seed plans come first, nothing is asked twice, the best is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from floe.tailoring.base import Trial
from floe.tailoring.genes import Levels
from floe.tailoring.plan import Plan
from floe.tailoring.space import Space

_TRIES = 16


class Started(ABC):
    """A search that asks for its seed plans, then for what `_propose` says.

    Every evaluation counts, those of the seeds too. A seed whose types and criterion an earlier
    seed had takes the best plan's so far: the first seeds find out which are good.
    """

    name = ""

    def __init__(self, *, space: Space, seed: int, seeds: Sequence[Levels] = ()) -> None:
        """`seeds` are levels of the space; they are repaired, so that they keep the budgets."""
        self.space = space
        self.rng = np.random.default_rng(seed)
        self.trials: list[tuple[Levels, Trial]] = []
        self._asked: set[Levels] = set()
        self._waiting = [space.repair_levels(s) for s in seeds]
        self._named = [i for i, g in enumerate(space.genes) if not g.is_width]
        self._tried: set[Levels] = set()

    @abstractmethod
    def _propose(self) -> Levels:
        """Levels inside the budgets."""

    def ask(self) -> Plan:
        """The next plan; one that was asked or told before only if nothing else is found."""
        levels = self._seed()
        tries = 0
        while levels is None or (levels in self._asked and tries < _TRIES):
            levels, tries = self._propose(), tries + 1
        self._asked.add(levels)
        return self.space.plan(levels, made_by=self.name)

    def tell(self, trial: Trial) -> None:
        """Learn what a plan came to; plans that were not asked for are welcome.

        Raises:
            BadPlan: the plan is of another model.
        """
        levels = self.space.levels(trial.plan)
        self._asked.add(levels)
        self.trials.append((levels, trial))

    def ranked(self) -> list[tuple[Levels, Trial]]:
        """Trials inside the budgets, the best first; ties by age."""
        known = [t for t in self.trials if self.space.fits(t[0])]
        return sorted(known, key=lambda t: -t[1].score)

    def _seed(self) -> Levels | None:
        while self._waiting:
            levels = self._waiting.pop(0)
            names = tuple(levels[i] for i in self._named)
            if names in self._tried:
                levels = self._with_best_names(levels)
            self._tried.add(names)
            if levels not in self._asked:
                return levels
        return None

    def _with_best_names(self, levels: Levels) -> Levels:
        ranked = self.ranked()
        if not ranked or not self._named:
            return levels
        changed = list(levels)
        for i in self._named:
            changed[i] = ranked[0][0][i]
        return self.space.repair_levels(changed)
