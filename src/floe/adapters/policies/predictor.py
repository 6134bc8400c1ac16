"""Probability that an adapter is used within a horizon: logistic regression, learned online."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Predictor:
    """One horizon; B examples wait until it is known how they ended. AdaGrad steps."""

    def __init__(
        self, weights_F: Sequence[float], *, step: float = 0.03, trust: float = 30.0
    ) -> None:
        self.prior_F = np.array(weights_F, dtype=np.float64)
        self.weights_F = self.prior_F.copy()
        self.trust = trust
        self.squares_F = np.full(len(self.weights_F), trust)
        self._step = step
        self._waiting: deque[tuple[int, int, NDArray[np.int64], Array]] = deque()
        self.examples = 0

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
            wrong_B = self.probability_n(x_BF) - (last_N[slots_B] > tick)
            slope_F = wrong_B @ x_BF / len(wrong_B)
            self.squares_F += slope_F * slope_F * len(wrong_B)
            self.weights_F -= (
                self._step * slope_F * np.sqrt(len(wrong_B)) / np.sqrt(self.squares_F / self.trust)
            )
            self.examples += len(wrong_B)

    def drop(self, slot: int) -> None:
        """Forget examples of a slot."""
        kept: deque[tuple[int, int, NDArray[np.int64], Array]] = deque()
        for tick, due, slots_B, x_BF in self._waiting:
            keep = slots_B != slot
            if keep.any():
                kept.append((tick, due, slots_B[keep], x_BF[keep]))
        self._waiting = kept

    def state(self) -> dict[str, object]:
        """Weights and step sizes; examples that wait are not kept."""
        return {"weights": self.weights_F.tolist(), "squares": self.squares_F.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; raises KeyError, TypeError or ValueError."""
        weights_F = np.asarray(state["weights"], dtype=np.float64)
        squares_F = np.asarray(state["squares"], dtype=np.float64)
        if weights_F.shape != self.prior_F.shape or squares_F.shape != self.prior_F.shape:
            raise ValueError("weights")
        if not (np.isfinite(weights_F).all() and (squares_F >= self.trust).all()):
            raise ValueError("weights")
        if not np.isfinite(squares_F).all():
            raise ValueError("squares")
        self.weights_F, self.squares_F = weights_F, squares_F
