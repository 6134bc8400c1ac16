"""FedAvg on adapters as frameworks do it: the mean of A times the mean of B. A baseline.

Not the mean of the updates (bug-log C22): the mean of B_i times the mean of A_i holds cross terms
between devices. `product_mean` is the default for that reason.
"""

from __future__ import annotations

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.packed import PackedState, Places, n_values, places_of, views
from floe.federated.products import state_cut
from floe.federated.update import AdapterState, Factors, FloatArray, Update

_BLOCK = 1 << 16  # values at a time: what is weighed stays in the processor's cache


class FactorMean:
    """Means of A and B apart, of updates with one rank, in constant memory."""

    name = "factor-mean"

    def __init__(self) -> None:
        self._layout = Layout()
        self._places: Places = ()
        self._total: FloatArray = np.zeros(0, np.float32)
        self._parts: dict[str, Factors] = {}  # look into `_total`

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; one of another rank is refused as "rank". See `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._check_fit(update)
        self._layout.take(update, weight=weight)
        state, share = update.state, np.float32(weight)
        if not self._parts:
            self._places = places_of(state)
            self._total = np.zeros(n_values(self._places), np.float32)
            self._parts = views(self._total, self._places)
        if isinstance(state, PackedState) and state.places == self._places:
            for low in range(0, len(self._total), _BLOCK):
                self._total[low : low + _BLOCK] += state.flat[low : low + _BLOCK] * share
            return
        for name, factors in state.modules.items():
            part = self._parts[name]
            part.a_RI[...] += factors.a_RI * share
            part.b_OR[...] += factors.b_OR * share

    def close(self, *, rank: int) -> Aggregate:
        """The product of the means, cut to `rank`; its truncation error is the cut's alone."""
        self._layout.require_some()
        modules = {name: self._mean(name) for name in self._parts}
        whole = AdapterState(base_digest=self._layout.base_digest, modules=modules)
        state, error = state_cut(whole, rank)
        return self._layout.aggregate(state, truncation_error=error)

    def _mean(self, name: str) -> Factors:
        share = np.float32(1.0 / self._layout.total_weight)
        part = self._parts[name]
        return Factors(a_RI=part.a_RI * share, b_OR=part.b_OR * share)

    def _check_fit(self, update: Update) -> None:
        if places_of(update.state) == self._places:
            return
        for name, factors in update.state.modules.items():
            if name in self._parts and factors.rank != self._parts[name].rank:
                raise BadUpdate(
                    f"client {update.client!r}, module {name!r}: rank {factors.rank} among rank "
                    f"{self._parts[name].rank}; factors of different ranks have no mean, use "
                    '"product-mean" or "zero-padded"',
                    reason="rank",
                )
