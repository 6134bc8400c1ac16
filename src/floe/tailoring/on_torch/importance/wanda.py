"""Wanda-sp: |w| times the norm of its input, summed over a channel's column (FLAP's variant)."""

from __future__ import annotations

from floe.tailoring.on_torch.importance.scores import ByChannels
from floe.tailoring.statistics import Array, Inputs


class WandaSp(ByChannels):
    """Implements base.Importance."""

    name = "wanda-sp"

    @staticmethod
    def _score(inputs: Inputs) -> Array:
        return inputs.column_abs * inputs.norm
