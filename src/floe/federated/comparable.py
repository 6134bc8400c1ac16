"""What devices of unequal ranks changed, in a form in which their tasks can be told apart.

Two things hide tasks from a plain cosine of products. A device of rank 32 moves in directions that
one of rank 4 does not have, so that devices of one rank look more alike than those of one task;
hence only the directions that all of them share are compared, those of the shared A at the lowest
rank. And all devices learn first what all tasks need, such as to answer briefly; hence their common
mean is taken away.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from floe.federated.grams import change_gram, cosines
from floe.federated.products import state_norm, state_scaled
from floe.federated.start import on_shared_a
from floe.federated.update import AdapterState, Factors

_LEAST_FOR_MEAN = 4  # of two devices, what is not their mean is exactly opposite
_PARTNERED = 0.15  # less than this without the mean is the noise of devices with one task


def comparable(
    states: Mapping[str, AdapterState], *, seed: int
) -> tuple[dict[str, AdapterState], AdapterState | None]:
    """Each adapter over the shared A at the lowest rank, at norm 1, and their mean.

    `seed` is that of the shared A. The mean is what `clusters.group` takes as the common start.
    None where there are fewer than four adapters, or where without it most of them are like no
    other: then all have one task, and what is left of them is noise, which would be grouped. All
    are to have the same modules.
    """
    rank = min(min(f.rank for f in s.modules.values()) for s in states.values())
    unit = {n: direction(s, rank=rank, seed=seed) for n, s in states.items()}
    if len(unit) < _LEAST_FOR_MEAN:
        return unit, None
    mean = _mean(unit)
    similar = cosines(change_gram(list(unit.values()), mean))
    np.fill_diagonal(similar, -1.0)
    return unit, mean if np.median(similar.max(axis=1)) >= _PARTNERED else None


def direction(state: AdapterState, *, rank: int, seed: int) -> AdapterState:
    """An adapter over the first `rank` directions of the shared A, at norm 1.

    One that changes nothing has no direction; it stays at nothing.
    """
    shared = on_shared_a(state, rank=rank, seed=seed)
    return state_scaled(shared, 1.0 / (state_norm(shared) or 1.0))


def _mean(states: Mapping[str, AdapterState]) -> AdapterState:
    """Exact: all have one A, so the mean of the products is that of the B."""
    first, *_ = states.values()
    modules = {}
    for name, factors in first.modules.items():
        every = np.stack([s.modules[name].b_OR for s in states.values()])
        b_OR = np.asarray(every.mean(axis=0), np.float32)
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
    return AdapterState(base_digest=first.base_digest, modules=modules)
