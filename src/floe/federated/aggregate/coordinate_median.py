"""The median of each coordinate."""

from __future__ import annotations

from collections.abc import Sequence

from floe.federated.aggregate.kept import ByCoordinate
from floe.federated.robust import coordinate_median
from floe.federated.update import Factors, FloatArray


class CoordinateMedian(ByCoordinate):
    """Per coordinate of the products, the median: bears any number below half."""

    name = "coordinate-median"

    def _middle(self, parts: Sequence[Factors], max_hostile: int) -> FloatArray:  # noqa: ARG002
        return coordinate_median(parts)
