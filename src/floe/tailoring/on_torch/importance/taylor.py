"""First-order Taylor: how much the loss moves if a group's weights become zero (LLM-Pruner).

The sum over a group of |w g|, LLM-Pruner's element-wise first order, arXiv 2305.11627.
"""

from __future__ import annotations

from collections.abc import Mapping

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.scores import from_groups
from floe.tailoring.statistics import Statistics


class Taylor:
    """Implements base.Importance."""

    name = "taylor"

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        return tuple(from_groups(layer.taylor) for layer in self._statistics.layers)

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on."""
        return self._statistics.facts()
