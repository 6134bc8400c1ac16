"""What travels between devices and server: an adapter as factors, and one device's update.

Matrices are in PEFT's row order and named by Hugging Face module path
("model.layers.0.self_attn.q_proj"); the scale alpha / r is folded into B everywhere, so the
change of a layer is B A and nothing else (bug-log C19).

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The change of one linear layer, `b_OR @ a_RI`."""

    a_RI: FloatArray
    b_OR: FloatArray

    @property
    def rank(self) -> int:
        """R, from the arrays."""
        return int(self.a_RI.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I) of the layer it changes."""
        return int(self.b_OR.shape[0]), int(self.a_RI.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterState:
    """An adapter as arrays: factors by module path, for the base with this digest."""

    base_digest: str
    modules: Mapping[str, Factors]

    @property
    def rank(self) -> int:
        """The largest rank over modules; 0 where there is none."""
        return max((f.rank for f in self.modules.values()), default=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """What one device returns from one round.

    `state` is its whole adapter after training (not the difference); `cluster` and `started_from`
    name the adapter it began with, "" for the first round's. `n_examples` weighs it. `metrics`
    are numbers about the training, never text.
    """

    client: str
    round_number: int
    state: AdapterState
    n_examples: int
    cluster: str = ""
    started_from: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
