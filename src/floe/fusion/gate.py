"""Is the SLM sure here? Then the cloud is not asked: a learned score and a target share.

The score guesses, from the SLM's own distribution, how many nats the cloud's advice would win. The
threshold is a quantile of it on the calibration text, so the target share of asked places is the
knob; on other text the real share differs, and both are reported (bug-log B31).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig
from floe.fusion.features import EDGE_NAMES, edge_features
from floe.fusion.net import Net

N_QUANTILES = 101


@dataclass(frozen=True, kw_only=True)
class SureGate:
    """`is_sure` for one target share. `quantiles` are the score's on the calibration text."""

    net: Net
    quantiles: tuple[float, ...]
    cloud_share: float

    @property
    def threshold(self) -> float:
        """The least score at which the cloud is asked."""
        return threshold(self.quantiles, self.cloud_share)

    def is_sure(self, log_q_V: NDArray[np.floating]) -> bool:
        """Whether the SLM's token may be released at once; the cloud is not asked then."""
        if self.cloud_share >= 1.0:
            return False
        return float(self.net(edge_features(log_q_V))) < self.threshold

    def as_json(self) -> dict[str, Any]:
        """Network and quantiles, without the target."""
        return {"net": self.net.as_json(), "quantiles": [round(q, 6) for q in self.quantiles]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, cloud_share: float) -> SureGate:
        """The gate in `data` for a target share.

        Raises:
            BadConfig: not a gate of this version.
        """
        quantiles = data.get("quantiles")
        if not isinstance(quantiles, list) or len(quantiles) != N_QUANTILES:
            raise BadConfig(f"the fusion gate must have {N_QUANTILES} quantiles")
        if any(not isinstance(q, float | int) for q in quantiles) or quantiles != sorted(quantiles):
            raise BadConfig("the fusion gate's quantiles must be rising numbers")
        return cls(
            net=Net.from_json(data.get("net", {}), names=EDGE_NAMES),
            quantiles=tuple(map(float, quantiles)),
            cloud_share=cloud_share,
        )


def quantiles_of(scores: NDArray[np.float64]) -> tuple[float, ...]:
    """The score's quantiles from 0 to 1 in even steps."""
    return tuple(np.quantile(scores, np.linspace(0.0, 1.0, N_QUANTILES)).tolist())


def threshold(quantiles: tuple[float, ...], cloud_share: float) -> float:
    """The score that a share `cloud_share` of the calibration text reaches."""
    if cloud_share >= 1.0:
        return -np.inf
    if cloud_share <= 0.0:
        return np.inf
    steps = np.linspace(0.0, 1.0, len(quantiles))
    return float(np.interp(1.0 - cloud_share, steps, quantiles))
