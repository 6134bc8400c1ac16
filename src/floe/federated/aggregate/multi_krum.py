"""The mean of the updates that lie closest together."""

from __future__ import annotations

from collections.abc import Sequence

from floe.federated.aggregate.kept import Kept
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.base import Aggregate
from floe.federated.products import Doubles
from floe.federated.robust import multi_krum
from floe.federated.update import Update


class MultiKrum(Kept):
    """The weighted mean of products of all but `max_hostile` updates.

    Distances are computed in factored form; `n_updates` and `n_examples` count the chosen ones.
    """

    name = "multi-krum"

    def _combine(
        self,
        kept: Sequence[tuple[Update, float]],
        gram_NN: Doubles,
        *,
        max_hostile: int,
        rank: int,
    ) -> Aggregate:
        mean = ProductMean()
        for place in multi_krum(gram_NN, max_hostile=max_hostile):
            update, weight = kept[place]
            mean.add(update, weight=weight)
        return mean.close(rank=rank)
