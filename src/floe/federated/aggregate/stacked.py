"""FLoRA's stacking: exact for any ranks, at a rank and a memory that grow with the clients."""

from __future__ import annotations

from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.products import state_cut, weighted_sum
from floe.federated.update import AdapterState, Factors, Update


class Stacked:
    """Factors side by side. Memory grows with every update: all of them are kept.

    `close` gives the whole stack when `rank` is not below the sum of ranks, and otherwise the
    nearest change of that rank (the rule of redistribution, bug-log C17).
    """

    name = "stacked"

    def __init__(self) -> None:
        self._layout = Layout()
        self._parts: dict[str, list[Factors]] = {}
        self._weights: list[float] = []

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; see `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._layout.take(update, weight=weight)
        self._weights.append(weight)
        for name, factors in update.state.modules.items():
            self._parts.setdefault(name, []).append(factors)

    def close(self, *, rank: int) -> Aggregate:
        """The weighted mean, cut to `rank`; see `base.Aggregator`."""
        self._layout.require_some()
        shares = [w / self._layout.total_weight for w in self._weights]
        modules = {name: weighted_sum(parts, shares) for name, parts in self._parts.items()}
        whole = AdapterState(base_digest=self._layout.base_digest, modules=modules)
        state, error = state_cut(whole, rank)
        return self._layout.aggregate(state, truncation_error=error)
