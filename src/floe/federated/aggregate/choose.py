"""One choice among the aggregators, by name (bug-log C20: never two switches at once)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from floe.core.errors import BadConfig
from floe.federated.aggregate.alternating import Alternating
from floe.federated.aggregate.coordinate_median import CoordinateMedian
from floe.federated.aggregate.factor_mean import FactorMean
from floe.federated.aggregate.frozen_a import FrozenA
from floe.federated.aggregate.multi_krum import MultiKrum
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.aggregate.rank_partition import RankPartition
from floe.federated.aggregate.stacked import Stacked
from floe.federated.aggregate.trimmed_mean import TrimmedMean
from floe.federated.aggregate.zero_padded import ZeroPadded
from floe.federated.base import Aggregator
from floe.federated.update import AdapterState

DEFAULT = ProductMean.name


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What an aggregator may need to know of the round.

    `max_hostile` None is a fifth of the updates; `start` is the adapter all began with.
    """

    round_number: int = 1
    max_hostile: int | None = None
    start: AdapterState | None = None


_MAKE: Mapping[str, Callable[[RoundFacts], Aggregator]] = {
    ProductMean.name: lambda _: ProductMean(),
    FactorMean.name: lambda _: FactorMean(),
    ZeroPadded.name: lambda _: ZeroPadded(),
    Stacked.name: lambda _: Stacked(),
    FrozenA.name: lambda _: FrozenA(),
    Alternating.name: lambda facts: Alternating(round_number=facts.round_number),
    RankPartition.name: lambda _: RankPartition(),
    TrimmedMean.name: lambda f: TrimmedMean(max_hostile=f.max_hostile, start=f.start),
    CoordinateMedian.name: lambda f: CoordinateMedian(max_hostile=f.max_hostile, start=f.start),
    MultiKrum.name: lambda f: MultiKrum(max_hostile=f.max_hostile, start=f.start),
}
AGGREGATORS = tuple(_MAKE)


def make_aggregator(
    name: str = DEFAULT,
    *,
    round_number: int = 1,
    max_hostile: int | None = None,
    start: AdapterState | None = None,
) -> Aggregator:
    """A fresh aggregator for one round.

    Raises:
        BadConfig: no aggregator of that name, or a bound below 0.
    """
    if name not in _MAKE:
        near = difflib.get_close_matches(name, AGGREGATORS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(AGGREGATORS)}"
        raise BadConfig(f"no aggregator named {name!r}; {hint}", param="aggregator")
    if max_hostile is not None and max_hostile < 0:
        raise BadConfig(f"max_hostile must be 0 or more, not {max_hostile}", param="max_hostile")
    return _MAKE[name](RoundFacts(round_number=round_number, max_hostile=max_hostile, start=start))
