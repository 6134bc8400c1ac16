"""Evolution by level switches, as in EvoPress: something grows by what something else gives up.

(1+lambda): offspring of the best plan so far, so that nothing found is lost. The budgets hold at
every step, since a switch is balanced before it is proposed. EvoPress screens many offspring on
few tokens; here a linear model of the trials so far can screen them (`screened`), which costs no
evaluation; on real models it did not help so far, so nothing is screened unless asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from floe.tailoring.genes import Levels
from floe.tailoring.search.local_model import LocalModel
from floe.tailoring.search.started import Started
from floe.tailoring.space import Space

_MOST_SWITCHES = 3
_BALANCING = 200  # single steps to come back inside the budgets
_RENAMED = 0.2  # another type or criterion
_RAISED = 8  # halves tried with one step more
_OFFSPRING = 16
_KNOWN = 4  # trials before anything is screened


class EvolutionarySearch(Started):
    """Starts from the best seed; asks for offspring of the best plan told so far."""

    name = "evolutionary"

    def __init__(
        self, *, space: Space, seed: int, seeds: Sequence[Levels] = (), screened: bool = False
    ) -> None:
        """Without seeds it starts from the uniform plan. `screened`: every second proposal."""
        super().__init__(space=space, seed=seed, seeds=seeds or (space.uniform(),))
        self._widths = [i for i, g in enumerate(space.genes) if g.is_width]
        self._names = [i for i, g in enumerate(space.genes) if not g.is_width]
        self._proposed, self._screened = 0, screened

    def _propose(self) -> Levels:
        ranked = self.ranked()
        parent = ranked[0][0] if ranked else self.space.uniform()
        self._proposed += 1
        if not self._screened or len(ranked) < _KNOWN or self._proposed % 2 == 0:
            return self.space.repair_levels(self.mutated(parent))
        model = LocalModel(ranked, self.space.genes)
        offspring = [self.mutated(parent) for _ in range(_OFFSPRING)]
        fresh = [o for o in offspring if o not in self._asked] or offspring
        best: Levels = min(fresh, key=lambda levels: model.expected(levels))
        return self.space.repair_levels(best)

    def mutated(self, parent: Levels) -> Levels:
        """Offspring: one to three switches, seldom another type or criterion."""
        rng = self.rng
        child = list(parent)
        if self._names and rng.random() < _RENAMED:
            i = int(rng.choice(self._names))
            child[i] = int(rng.integers(self.space.genes[i].top + 1))
        switches = min(int(n) for n in rng.integers(1, _MOST_SWITCHES + 1, 2))
        for _ in range(switches):
            self._switch(child)
        return self._balanced(child)

    def _switch(self, child: list[int]) -> None:
        """One half of a layer gives levels up, another one gets some."""
        rng, genes = self.rng, self.space.genes
        givers = [i for i in self._widths if child[i] > 0]
        takers = [i for i in self._widths if child[i] < genes[i].top]
        if not givers or not takers:
            return
        giver, taker = int(rng.choice(givers)), int(rng.choice(takers))
        child[giver] = 0 if rng.random() < 0.25 else max(0, child[giver] - self._step())
        if taker != giver:
            child[taker] = min(genes[taker].top, child[taker] + self._step())

    def _step(self) -> int:
        return int(self.rng.integers(1, 4))

    def _balanced(self, child: list[int]) -> Levels:
        """Inside the budgets by single random steps; unused room is given out the same way."""
        rng, space = self.rng, self.space
        for _ in range(_BALANCING):
            if space.fits(tuple(child)):
                break
            givers = [i for i in self._widths if child[i] > 0]
            if not givers:
                break
            child[int(rng.choice(givers))] -= 1
        child = list(space.repair_levels(child, fill=False))
        open_ = [i for i in self._widths if 0 < child[i] < space.genes[i].top]
        for i in (int(i) for i in rng.permutation(open_)[:_RAISED]):
            raised = [*child[:i], child[i] + 1, *child[i + 1 :]]
            if space.fits(tuple(raised)):
                child = raised
        return tuple(child)
