"""Fixed point for secure sums: values are clipped silently there, so they are checked here (C25).

SecAgg+ maps [-range, range] to whole numbers below `levels` and adds them modulo `modulus`. A value
out of range would come back as the range's end, and a sum above the modulus as something else.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig, BadUpdate
from floe.federated.sampling import positive
from floe.federated.update import AdapterState, Factors

Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """The terms of a secure sum; defaults are those of Flower's SecAgg+."""

    clipping_range: float = 8.0
    levels: int = 1 << 22
    modulus: int = 1 << 32

    def __post_init__(self) -> None:
        """Raises BadConfig for a range that is not finite and above 0, or no room for one sum."""
        positive(self.clipping_range, what="clipping range", param="clipping_range")
        if not 2 <= self.levels < self.modulus:
            raise BadConfig(
                f"{self.levels} levels do not fit below the modulus {self.modulus}", param="levels"
            )

    @property
    def max_clients(self) -> int:
        """The most updates whose sum cannot pass the modulus."""
        return (self.modulus - 1) // (self.levels - 1)

    @property
    def step(self) -> float:
        """Between two neighbouring levels: a value is off by less than this, unbiased."""
        return 2 * self.clipping_range / (self.levels - 1)

    def require_clients(self, n: int) -> None:
        """Nothing, where `n` updates can be added up.

        Raises:
            BadConfig: their sum could pass the modulus.
        """
        if not 1 <= n <= self.max_clients:
            raise BadConfig(
                f"{n} updates of {self.levels} levels can pass the modulus {self.modulus}: at most "
                f"{self.max_clients} fit; lower the quantization range",
                param="levels",
            )

    def encode(self, values: NDArray[np.floating], rng: np.random.Generator) -> Whole:
        """Whole numbers from 0, rounded up or down at random so that the mean is right.

        Raises:
            BadUpdate: a value out of range or not finite.
        """
        outside = out_of_range(values, self.clipping_range)
        if outside:
            raise _outside(outside, values.size, self.clipping_range)
        scaled = (values.astype(np.float64) + self.clipping_range) / self.step
        floor = np.floor(scaled)
        up = rng.random(values.shape) < scaled - floor
        whole: Whole = np.clip(floor + up, 0, self.levels - 1).astype(np.int64)
        return whole

    def decode_sum(self, total: Whole, n: int) -> NDArray[np.float64]:
        """The sum of `n` encoded arrays as numbers; `total` may be taken modulo the modulus."""
        self.require_clients(n)
        whole = np.mod(total, self.modulus)
        return np.asarray(whole * self.step - n * self.clipping_range)


def out_of_range(values: NDArray[np.floating], clipping_range: float) -> int:
    """How many values a secure sum would change; one that is not a number counts."""
    return int(values.size - np.count_nonzero(np.abs(values) <= clipping_range))


def fit_range(
    state: AdapterState, fixed: FixedPoint, *, on_outside: Literal["raise", "count"] = "raise"
) -> tuple[AdapterState, int]:
    """B within the range, and how many of its values were not; A is shared and never summed.

    "count" cuts values off at the range's ends, as SecAgg+ would, and tells how many.

    Raises:
        BadUpdate: with "raise", a value out of range; always, one that is not finite.
    """
    outside, size, modules = 0, 0, {}
    for name, factors in state.modules.items():
        if not np.isfinite(factors.b_OR).all():
            raise BadUpdate(f"{name} B holds a value that is not finite", reason="not_finite")
        outside += out_of_range(factors.b_OR, fixed.clipping_range)
        size += factors.b_OR.size
        b_OR = np.clip(factors.b_OR, -fixed.clipping_range, fixed.clipping_range)
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
    if outside and on_outside == "raise":
        raise _outside(outside, size, fixed.clipping_range)
    return AdapterState(base_digest=state.base_digest, modules=modules), outside


def _outside(count: int, size: int, clipping_range: float) -> BadUpdate:
    return BadUpdate(
        f"{count} of {size} values are outside the secure sum's range of +-{clipping_range:g} and "
        "would be cut off: raise the clipping range, or lower the clip norm or the noise",
        reason="out_of_range",
    )
