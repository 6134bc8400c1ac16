"""The slow, obvious form of the bandit: every observation kept, every matrix solved anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floe.routing.bandit import Settings

Array = NDArray[np.float64]


class BanditTwin:
    def __init__(self, settings: Settings) -> None:
        self.s = settings
        self.seen: dict[str, list[tuple[Array, float, float]]] = {}
        self.all: list[tuple[Array, float, float]] = []

    def update(self, arm: str, x: Array, reward: float, weight: float) -> None:
        self.seen.setdefault(arm, []).append((x, reward, weight))
        self.all.append((x, reward, weight))

    def _solved(
        self, rows: list[tuple[Array, float, float]], ridge: float, centre: Array
    ) -> tuple[Array, Array]:
        """Weighted ridge around `centre`, older rows fading; (matrix, theta)."""
        D, g = self.s.width, self.s.forgetting
        a, b = ridge * np.eye(D), np.zeros(D)
        for x, y, w in rows:
            a = g * a + (1 - g) * ridge * np.eye(D) + w * np.outer(x, x)
            b = g * b + w * y * x
        return a, np.linalg.solve(a, b + ridge * centre)

    def shared(self) -> Array:
        s = self.s
        return self._solved(self.all, s.shared_ridge, np.zeros(s.width))[1]

    def index(self, arm: str, x: Array, beta: float) -> float:
        """Expected utility and bonus, over those of an arm without observations."""
        shared = self.shared()
        a, theta = self._solved(self.seen.get(arm, []), self.s.ridge, shared)
        width = np.sqrt(x @ np.linalg.solve(a, x)) - np.sqrt(x @ x / self.s.ridge)
        return float(theta @ x - shared @ x + beta * width)
