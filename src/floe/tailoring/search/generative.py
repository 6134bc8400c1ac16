"""CLONE's generative search: learn what good plans look like, move towards better ones, decode.

A plan is a sequence of tokens, one for each gene that is above its smallest level, so that a plan
with dropped layers is shorter; the end token says that nothing more stays. Records come from the
seeds and from random plans, then from what the model itself proposed.

With dozens of records (CLONE has some 200) the decoder writes a plan down with errors. So what is
applied is the difference between the sequences decoded before and after the step along the
gradient: with a decoder that makes no errors that is the decoded plan itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from floe.tailoring.base import Trial
from floe.tailoring.genes import Gene, Levels
from floe.tailoring.search.started import Started
from floe.tailoring.space import Space

TOP = 25
_STEPS_UP = (0.1, 0.3, 0.6, 1.0, 2.0)
_EVERY = 5  # trials between two trainings
_TRIED = 8  # representations decoded for one proposal


class Model(Protocol):
    """What the search needs of `on_torch.lstm.PlanModel`."""

    def fit(
        self,
        sequences: Sequence[Sequence[int]],
        scores: Sequence[float],
        *,
        steps: int,
        weights: Sequence[float] | None = None,
    ) -> float:
        """Train on; the loss."""

    def scores(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Expected scores."""

    def better(
        self,
        start: Sequence[int],
        *,
        step: float,
        allowed: Callable[[Sequence[int]], Sequence[int]],
    ) -> tuple[list[int], float]:
        """A sequence from a moved representation."""


class GenerativeSearch(Started):
    """Random records after the seeds, then what the model proposes, trained again and again."""

    name = "generative"

    def __init__(
        self,
        *,
        space: Space,
        seed: int,
        model: Callable[[int, int], Model],
        n_random: int = 8,
        steps: tuple[int, int] = (150, 40),
        seeds: Sequence[Levels] = (),
    ) -> None:
        """`model(n_ids, seed)` makes the model; `n_random` random plans are asked after the seeds.

        `steps` are those of the first training and of each later one.
        """
        super().__init__(space=space, seed=seed, seeds=seeds)
        self.tokens = Tokens(space.genes)
        self._model, self._steps = model(self.tokens.n_ids, seed), steps
        self._n_random, self._since, self._trained = n_random, 0, False
        self._starts: list[tuple[Levels, float]] = []

    def tell(self, trial: Trial) -> None:
        """Learn from a trial at the next training.

        Raises:
            BadPlan: the plan is of another model.
        """
        super().tell(trial)
        self._since += 1

    def _propose(self) -> Levels:
        if self._n_random > 0 or len(self.trials) < 2:
            self._n_random -= 1
            return self.space.random(self.rng)
        if self._since >= _EVERY or not self._trained:
            self._train()
        return self._decoded()

    def _train(self) -> None:
        ranked = self.ranked() or list(self.trials)
        values = np.log(np.maximum([t.score for _, t in ranked], 1e-12))
        low, high = float(values.min()), float(values.max())
        scaled = (values - low) / (high - low + 1e-12)
        sequences = [self.tokens.write(levels) for levels, _ in ranked]
        weights = 0.9 ** np.arange(len(ranked))  # the decoder learns the better plans first
        self._model.fit(
            sequences,
            [float(v) for v in scaled],
            steps=self._steps[self._trained],
            weights=[float(w) for w in weights],
        )
        self._trained, self._since = True, 0
        self._starts = [
            (levels, step) for step, (levels, _) in itertools.product(_STEPS_UP, ranked[:TOP])
        ]

    def _decoded(self) -> Levels:
        """The most promising of a few new plans, by the evaluator."""
        found: list[Levels] = []
        for _ in range(_TRIED):
            if not self._starts:
                break
            # Better plans and small steps come first in the list and are drawn more often.
            k = int(len(self._starts) * self.rng.random() ** 2)
            levels, step = self._starts.pop(k)
            before, after = self._written(levels, 0.0), self._written(levels, step)
            moved = [n + b - a for n, a, b in zip(levels, before, after, strict=True)]
            repaired = self.space.repair_levels(moved)
            if repaired not in self._asked and repaired not in found:
                found.append(repaired)
        if not found:
            return self.space.random(self.rng)
        expected = self._model.scores([self.tokens.write(f) for f in found])
        return found[int(np.argmax(expected))]

    def _written(self, levels: Levels, step: float) -> Levels:
        written, _ = self._model.better(
            self.tokens.write(levels), step=step, allowed=self.tokens.allowed
        )
        return self.tokens.read(written)


class Tokens:
    """Levels as tokens: an id for each gene and level above 0, in the order of the genes."""

    def __init__(self, genes: Sequence[Gene]) -> None:
        self._tops = [g.top for g in genes]
        self._firsts = [0, *itertools.accumulate(self._tops)]
        self._genes = [i for i, top in enumerate(self._tops) for _ in range(top)]
        self.n_ids = self._firsts[-1]

    def write(self, levels: Levels) -> list[int]:
        """The sequence of a plan, without the end token."""
        return [self._firsts[i] + n - 1 for i, n in enumerate(levels) if n > 0]

    def read(self, written: Sequence[int]) -> Levels:
        """The levels of a sequence; genes that it does not name are at 0."""
        levels = [0] * len(self._tops)
        for i in written:
            gene = self._genes[i]
            levels[gene] = i - self._firsts[gene] + 1
        return tuple(levels)

    def allowed(self, written: Sequence[int]) -> Sequence[int]:
        """Every id of a later gene, and the end."""
        after = self._genes[written[-1]] + 1 if written else 0
        return range(self._firsts[after], self.n_ids + 1)
