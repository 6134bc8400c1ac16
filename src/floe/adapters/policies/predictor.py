"""Probability that an adapter is used within a horizon: logistic regression, learned online.

Each step is one of Newton's on the loss so far plus a Gaussian prior: a few hundred requests
suffice, and weights that go together are learned together. The prior's mean and precision come
from the tuning traces (`scripts/fit_cache_prior.py`). Examples overlap in time, so each counts for
less than one; old ones fade towards the prior. F features, B examples.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRIOR_FILE = Path(__file__).with_name("prior.json")
_COUNTS_FOR = 0.2
_FADE = 0.0005
_LEAST_CURVE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is believed of the weights before the first example."""

    mean_F: Array
    precision_FF: Array


@cache
def shipped_priors() -> tuple[Prior, ...]:
    """One for each horizon, the near one last."""
    found = json.loads(PRIOR_FILE.read_text(encoding="utf-8"))
    return tuple(
        Prior(mean_F=np.array(row["mean"]), precision_FF=np.array(row["precision"]))
        for row in found["priors"]
    )


class Predictor:
    """One horizon; examples wait until it is known how they ended."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.weights_F = prior.mean_F.copy()
        self.precision_FF = prior.precision_FF.copy()
        self._waiting: deque[tuple[int, int, NDArray[np.int64], Array]] = deque()

    def probability_n(self, x_nF: Array) -> Array:
        """Of each row."""
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x_nF @ self.weights_F, -30, 30))))

    def ask(self, tick: int, due: int, slots_B: NDArray[np.int64], x_BF: Array) -> None:
        """Remember rows whose truth is known at tick `due`."""
        self._waiting.append((tick, due, slots_B, x_BF))

    def learn(self, now: int, last_N: Array) -> None:
        """Take the steps that are due; `last_N` is the tick of each slot's last use."""
        while self._waiting and self._waiting[0][1] <= now:
            tick, _, slots_B, x_BF = self._waiting.popleft()
            self._step(x_BF, last_N[slots_B] > tick)

    def _step(self, x_BF: Array, used_B: NDArray[np.bool_]) -> None:
        p_B = self.probability_n(x_BF)
        curve_B = _COUNTS_FOR * np.maximum(p_B * (1.0 - p_B), _LEAST_CURVE)
        prior = self.prior
        self.precision_FF += _FADE * (prior.precision_FF - self.precision_FF)
        self.precision_FF += (x_BF * curve_B[:, None]).T @ x_BF
        slope_F = _COUNTS_FOR * ((used_B - p_B) @ x_BF)
        slope_F += _FADE * (prior.precision_FF @ (prior.mean_F - self.weights_F))
        self.weights_F += np.linalg.solve(self.precision_FF, slope_F)

    def drop(self, slot: int) -> None:
        """Forget examples of a slot."""
        kept: deque[tuple[int, int, NDArray[np.int64], Array]] = deque()
        for tick, due, slots_B, x_BF in self._waiting:
            keep = slots_B != slot
            if keep.any():
                kept.append((tick, due, slots_B[keep], x_BF[keep]))
        self._waiting = kept

    def state(self) -> dict[str, object]:
        """Weights and how sure they are; examples that wait are not kept."""
        return {"weights": self.weights_F.tolist(), "precision": self.precision_FF.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; raises KeyError, TypeError or ValueError."""
        weights_F = np.asarray(state["weights"], dtype=np.float64)
        precision_FF = np.asarray(state["precision"], dtype=np.float64)
        if weights_F.shape != self.weights_F.shape or precision_FF.shape != self.precision_FF.shape:
            raise ValueError("weights")
        if not (np.isfinite(weights_F).all() and np.isfinite(precision_FF).all()):
            raise ValueError("weights")
        if not np.allclose(precision_FF, precision_FF.T):
            raise ValueError("precision")
        np.linalg.cholesky(precision_FF)  # raises LinAlgError, a ValueError
        self.weights_F, self.precision_FF = weights_F, precision_FF
