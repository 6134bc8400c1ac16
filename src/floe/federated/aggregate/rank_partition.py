"""raFLoRA: each range of ranks is averaged over the devices that reach it.

In a plain mean the directions that only high-rank devices can hold are divided by everybody's
weight and fade over rounds ("rank collapse"). Here a device's change is laid out by singular
values, and directions 9 to 16, say, are a mean over those with a rank above 8 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from floe.federated.aggregate.layout import Layout
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.base import Aggregate
from floe.federated.products import cut, state_cut, weighted_sum
from floe.federated.update import AdapterState, Factors, Update

RANKS = (4, 8, 16, 32)


class RankPartition:
    """A mean per range of ranks, added up; in constant memory, one `ProductMean` per range.

    Not the mean of the products: `truncation_error` is the cut's alone.
    """

    name = "rank-partition"

    def __init__(self, *, ranks: Sequence[int] = RANKS) -> None:
        self._bounds = tuple(zip((0, *ranks), (*ranks, None), strict=True))
        self._means = [ProductMean() for _ in self._bounds]
        self._taken = [0 for _ in self._bounds]
        self._layout = Layout()

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; see `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._layout.take(update, weight=weight)
        laid_out = {n: cut(f, f.rank).factors for n, f in update.state.modules.items()}
        for place, (low, high) in enumerate(self._bounds):
            if low >= update.state.rank:
                break
            part = {n: _rows(f, low, high) for n, f in laid_out.items()}
            self._means[place].add(_with(update, part), weight=weight)
            self._taken[place] += 1

    def close(self, *, rank: int) -> Aggregate:
        """The sum of the ranges' means, cut to `rank`; see `base.Aggregator`."""
        self._layout.require_some()
        means = [
            m.close(rank=4 * max(rank, RANKS[-1]))
            for m, n in zip(self._means, self._taken, strict=True)
            if n
        ]
        modules = {
            name: weighted_sum([m.state.modules[name] for m in means], [1.0] * len(means))
            for name in self._layout.shapes
        }
        whole = AdapterState(base_digest=self._layout.base_digest, modules=modules)
        state, error = state_cut(whole, rank)
        return self._layout.aggregate(state, truncation_error=error)


def _rows(factors: Factors, low: int, high: int | None) -> Factors:
    """Directions `low` to `high`; where a module has none there, one of zeros."""
    if low >= factors.rank:
        return Factors(a_RI=factors.a_RI[:1] * 0, b_OR=factors.b_OR[:, :1] * 0)
    return Factors(a_RI=factors.a_RI[low:high], b_OR=factors.b_OR[:, low:high])


def _with(update: Update, modules: dict[str, Factors]) -> Update:
    state = AdapterState(base_digest=update.state.base_digest, modules=modules)
    return Update(
        client=update.client,
        round_number=update.round_number,
        state=state,
        n_examples=update.n_examples,
    )
