"""FedAvg on adapters as frameworks do it: the mean of A times the mean of B. A baseline.

Not the mean of the updates (bug-log C22): the mean of B_i times the mean of A_i holds cross terms
between devices. `product_mean` is the default for that reason.
"""

from __future__ import annotations

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.products import state_cut
from floe.federated.update import AdapterState, Factors, FloatArray, Update


class FactorMean:
    """Means of A and B apart, of updates with one rank, in constant memory."""

    name = "factor-mean"

    def __init__(self) -> None:
        self._layout = Layout()
        self._a: dict[str, FloatArray] = {}
        self._b: dict[str, FloatArray] = {}

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; one of another rank is refused as "rank". See `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._check_ranks(update)
        self._layout.take(update, weight=weight)
        share = np.float32(weight)
        for name, factors in update.state.modules.items():
            if name in self._a:
                self._a[name] += factors.a_RI * share
                self._b[name] += factors.b_OR.T * share
            else:
                self._a[name] = factors.a_RI * share
                self._b[name] = factors.b_OR.T * share

    def close(self, *, rank: int) -> Aggregate:
        """The product of the means, cut to `rank`; its truncation error is the cut's alone."""
        self._layout.require_some()
        modules = {name: self._mean(name) for name in self._a}
        whole = AdapterState(base_digest=self._layout.base_digest, modules=modules)
        state, error = state_cut(whole, rank)
        return self._layout.aggregate(state, truncation_error=error)

    def _mean(self, name: str) -> Factors:
        share = np.float32(1.0 / self._layout.total_weight)
        return Factors(a_RI=self._a[name] * share, b_OR=(self._b[name] * share).T)

    def _check_ranks(self, update: Update) -> None:
        for name, factors in update.state.modules.items():
            if name in self._a and factors.rank != len(self._a[name]):
                raise BadUpdate(
                    f"client {update.client!r}, module {name!r}: rank {factors.rank} among rank "
                    f"{len(self._a[name])}; factors of different ranks have no mean, use "
                    '"product-mean" or "zero-padded"',
                    reason="rank",
                )
