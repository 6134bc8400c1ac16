"""What is known around the best plan: a linear model of log-perplexity, without an evaluation.

Legend: N trials, G genes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from floe.tailoring.base import Trial
from floe.tailoring.genes import Gene, Levels

_NOISE = 0.1  # of log-perplexity: what a line does not explain
_SPREAD = 0.3  # of what a whole gene is worth, before anything is known
_FORGET = 0.5  # a trial counts by exp(-0.5 per unit of log-perplexity above the best)
_WORST = 20.0


class LocalModel:
    """Bayesian regression of the trials' differences to the best one; far ones count less."""

    def __init__(self, trials: Sequence[tuple[Levels, Trial]], genes: Sequence[Gene]) -> None:
        """`trials` with the best first; at least one."""
        self._tops_G = np.array([g.top for g in genes], dtype=np.float64)
        at_NG = np.array([self._shares(levels) for levels, _ in trials])
        self._best_G = at_NG[0]
        moved_NG = at_NG - self._best_G
        worse_N = np.array([_worse(trials[0][1], trial) for _, trial in trials])
        weighted_NG = moved_NG * (np.exp(-_FORGET * worse_N) / _NOISE**2)[:, None]
        size = len(genes)
        precision_GG = weighted_NG.T @ moved_NG + np.eye(size) / _SPREAD**2
        self._mean_G = np.linalg.solve(precision_GG, weighted_NG.T @ worse_N)

    def expected(self, levels: Levels) -> float:
        """Log-perplexity over the best plan's, as far as known; below 0 = better."""
        return float((self._shares(levels) - self._best_G) @ self._mean_G)

    def _shares(self, levels: Levels) -> NDArray[np.float64]:
        return np.array(levels, dtype=np.float64) / self._tops_G


def _worse(best: Trial, trial: Trial) -> float:
    if not math.isfinite(trial.perplexity):
        return _WORST
    return min(math.log(trial.perplexity / best.perplexity), _WORST)
