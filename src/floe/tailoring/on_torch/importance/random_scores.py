"""Random: the baseline that knows nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.scores import summed
from floe.tailoring.statistics import Statistics


class RandomScores:
    """Implements base.Importance; the same scores for the same seed."""

    name = "random"

    def __init__(self, statistics: Statistics, seed: int = 0) -> None:
        self._shape, self._seed = statistics.shape, seed

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        rng = np.random.default_rng(self._seed)
        shape, records = self._shape, []
        for _ in range(shape.n_layers):
            q_KG = rng.random((shape.n_kv_heads, shape.q_per_kv))
            records.append(summed(q_KG.sum(1), q_KG, rng.random(shape.n_ffn)))
        return tuple(records)

    def facts(self) -> Mapping[str, float | int | str]:
        """Its seed."""
        return {"calibration_tokens": 0, "seed": self._seed}
