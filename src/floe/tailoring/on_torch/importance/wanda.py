"""Wanda-sp: |w| times the norm of its input, summed over a channel's column (FLAP's variant).

Channels are those of the two output projections: the values of heads, and the FFN's.
"""

from __future__ import annotations

from collections.abc import Mapping

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.scores import from_channels
from floe.tailoring.statistics import Array, Inputs, Statistics


class WandaSp:
    """Implements base.Importance."""

    name = "wanda-sp"

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
    return inputs.column_abs * inputs.norm
