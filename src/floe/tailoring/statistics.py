"""What every pruning criterion is computed from, gathered in one pass over calibration text.

Legend: K KV heads, G query heads of a KV head, I inputs of the output projection (all query
heads' values), F FFN channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.tailoring.plan import ModelShape

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The inputs of one linear layer over all calibration tokens, and the weights' columns.

    Per input channel: mean, variance (population), root of the sum of squares; the sums of
    absolute and of squared weights of its column.
    """

    mean: Array
    variance: Array
    norm: Array
    column_abs: Array
    column_square: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """A sum over the weights of each group; `kv_K` holds only the K and V rows of a head."""

    kv_K: Array
    q_KG: Array
    ffn_F: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """One layer: inputs of both output projections, group sums, and 1 - cosine of the residual.

    `weights` sums |w|, `taylor` sums |w g| with g the gradient of the loss. `*_change` is one
    minus the mean cosine between the residual stream before and after that part.
    """

    attention: Inputs
    ffn: Inputs
    weights: Groups
    taylor: Groups
    attention_change: float
    ffn_change: float
    block_change: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """All layers, and what they were measured on."""

    shape: ModelShape
    layers: tuple[LayerStatistics, ...]
    n_tokens: int
    n_taylor_tokens: int
    loss: float

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on, for the report."""
        return {
            "calibration_tokens": self.n_tokens,
            "taylor_tokens": self.n_taylor_tokens,
            "calibration_loss": self.loss,
        }
