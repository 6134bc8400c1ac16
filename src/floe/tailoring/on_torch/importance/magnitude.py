"""Magnitude: the sum of |w| over a group; needs no text."""

from __future__ import annotations

from collections.abc import Mapping

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.scores import from_groups
from floe.tailoring.statistics import Statistics


class Magnitude:
    """Implements base.Importance."""

    name = "magnitude"

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        return tuple(from_groups(layer.weights) for layer in self._statistics.layers)

    def facts(self) -> Mapping[str, float | int | str]:
        """It looks at weights alone."""
        return {"calibration_tokens": 0}
