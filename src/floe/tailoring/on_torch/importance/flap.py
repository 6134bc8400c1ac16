"""FLAP: how much a channel fluctuates around its mean, times its column's squared norm.

What is constant is given back by a bias (`on_torch.prune.compensation`), so only the
fluctuation is lost. arXiv 2312.11983, "WIFV" in its code, as printed in the paper: the released
code squares the channels' scores once more before it joins them to heads.
"""

from __future__ import annotations

from floe.tailoring.on_torch.importance.scores import ByChannels
from floe.tailoring.statistics import Array, Inputs


class Flap(ByChannels):
    """Implements base.Importance."""

    name = "flap"

    @staticmethod
    def _score(inputs: Inputs) -> Array:
        return inputs.variance * inputs.column_square
