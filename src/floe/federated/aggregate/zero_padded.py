"""HetLoRA's zero padding: factors filled up to the largest rank, then averaged apart. A baseline.

It keeps `factor_mean`'s cross terms and adds a bias: rows that only high ranks have are divided by
everybody's weight.
"""

from __future__ import annotations

import numpy as np

from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.products import state_cut, state_norm
from floe.federated.update import AdapterState, Factors, FloatArray, Update


class ZeroPadded:
    """Means of padded A and B apart, in constant memory.

    `by_norm` weighs each update by the norm of its change too, as HetLoRA does.
    """

    name = "zero-padded"

    def __init__(self, *, by_norm: bool = False) -> None:
        self._by_norm = by_norm
        self._layout = Layout()
        self._total = 0.0
        self._a: dict[str, FloatArray] = {}
        self._b: dict[str, FloatArray] = {}

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; see `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._layout.take(update, weight=weight)
        share = weight * (state_norm(update.state) if self._by_norm else 1.0)
        self._total += share
        for name, factors in update.state.modules.items():
            self._a[name] = _plus(self._a.get(name), factors.a_RI, share)
            self._b[name] = _plus(self._b.get(name), factors.b_OR.T, share)

    def close(self, *, rank: int) -> Aggregate:
        """The product of the means, cut to `rank`; its truncation error is the cut's alone."""
        self._layout.require_some()
        share = np.float32(1.0 / self._total if self._total > 0.0 else 0.0)
        state, error = state_cut(
            AdapterState(
                base_digest=self._layout.base_digest,
                modules={
                    n: Factors(a_RI=self._a[n] * share, b_OR=(self._b[n] * share).T)
                    for n in self._a
                },
            ),
            rank,
        )
        return self._layout.aggregate(state, truncation_error=error)


def _plus(total: FloatArray | None, rows: FloatArray, share: float) -> FloatArray:
    """The total with weighted rows on top of its first ones; longer when they are more."""
    if total is None:
        return np.ascontiguousarray(rows * np.float32(share))
    if len(rows) > len(total):
        missing = np.zeros((len(rows) - len(total), total.shape[1]), np.float32)
        total = np.concatenate([total, missing])
    total[: len(rows)] += rows * np.float32(share)
    return total
