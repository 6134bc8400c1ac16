"""FLAP: how much a channel fluctuates around its mean, times its column's squared norm.

What is constant is given back by a bias (`on_torch.prune.compensation`), so only the
fluctuation is lost. arXiv 2312.11983, "WIFV" in its code, as printed in the paper: the released
code squares the channels' scores once more before it joins them to heads.
"""

from __future__ import annotations

from collections.abc import Mapping

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.scores import from_channels
from floe.tailoring.statistics import Array, Inputs, Statistics


class Flap:
    """Implements base.Importance."""

    name = "flap"

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        return tuple(
            from_channels(_score(s.attention), _score(s.ffn), self._statistics.shape)
            for s in self._statistics.layers
        )

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on."""
        return self._statistics.facts()


def _score(inputs: Inputs) -> Array:
    return inputs.variance * inputs.column_square
