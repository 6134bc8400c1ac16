"""The mean of each coordinate without its extremes."""

from __future__ import annotations

from collections.abc import Sequence

from floe.federated.aggregate.kept import ByCoordinate
from floe.federated.robust import trimmed_mean
from floe.federated.update import Factors, FloatArray


class TrimmedMean(ByCoordinate):
    """Per coordinate of the products, as many least and greatest dropped as may be hostile."""

    name = "trimmed-mean"

    def _middle(self, parts: Sequence[Factors], max_hostile: int) -> FloatArray:
        return trimmed_mean(parts, trim=max_hostile)
