"""The mean where all devices hold one half of the factors in common: exact on factors."""

from __future__ import annotations

from typing import Literal

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.aggregate.factor_mean import FactorMean
from floe.federated.update import Factors, FloatArray, Update

Half = Literal["a", "b"]


class SharedHalf(FactorMean):
    """`FactorMean` of updates that differ in their `trained` half alone.

    With one A, the mean of B_i times A is the mean of the B_i A: no cross terms. When `close` does
    not cut, the shared half comes back bit for bit, so that the next round shares it too.
    """

    name = "shared-half"

    def __init__(self, *, trained: Half) -> None:
        super().__init__()
        self._trained = trained
        self._shared: dict[str, FloatArray] = {}

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; one with another shared half is refused as "not_shared"."""
        super().add(update, weight=weight)
        if not self._shared:
            self._shared = {n: self._half(f).copy() for n, f in update.state.modules.items()}

    def _check_fit(self, update: Update) -> None:
        super()._check_fit(update)
        for name, shared in self._shared.items():
            if not np.array_equal(shared, self._half(update.state.modules[name])):
                raise BadUpdate(
                    f"client {update.client!r}, module {name!r}: its "
                    f"{'A' if self._trained == 'b' else 'B'} is not the one this round shares; "
                    "train with that half frozen",
                    reason="not_shared",
                )

    def _mean(self, name: str) -> Factors:
        mean = super()._mean(name)
        if self._trained == "b":
            return Factors(a_RI=self._shared[name].copy(), b_OR=mean.b_OR)
        return Factors(a_RI=mean.a_RI, b_OR=self._shared[name].copy())

    def _half(self, factors: Factors) -> FloatArray:
        return factors.a_RI if self._trained == "b" else factors.b_OR
