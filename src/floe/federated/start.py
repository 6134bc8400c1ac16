"""What a device's training begins with: a fresh adapter, or the round's at the device's own rank.

All devices draw the same A from the federation's seed, of lower ranks the first rows of the same,
so that what they change in a first round can be compared and added.

Legend: R rank, I inputs of a linear layer, O its outputs, S rank of the shared A.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from floe.federated.products import state_at_rank
from floe.federated.shared_a import shared_a
from floe.federated.update import AdapterState, Factors, FloatArray


def fresh_state(
    base_digest: str, shapes: Mapping[str, tuple[int, int]], *, rank: int, seed: int
) -> AdapterState:
    """An adapter that changes nothing: the shared A, and B of zeros, for layers of (O, I)."""
    return AdapterState(
        base_digest=base_digest,
        modules={
            name: Factors(
                a_RI=_a_of(name, shape, rank, seed), b_OR=np.zeros((shape[0], rank), np.float32)
            )
            for name, shape in shapes.items()
        },
    )


def at_rank(start: AdapterState, *, rank: int, seed: int) -> AdapterState:
    """`start` at another rank: cut by singular values, or widened without a change of products."""
    return state_at_rank(start, rank, seed=seed)[0]


def on_shared_a(start: AdapterState, *, rank: int, seed: int) -> AdapterState:
    """`start` written over the shared A at `rank`, for rounds that train B alone.

    Exact where the changes lie in the span of the shared A, as those of such rounds do; else the
    nearest that it can express. An adapter that has the shared A already is given back as it is.
    """
    modules = {}
    for name, factors in start.modules.items():
        a_SI = _a_of(name, factors.shape, rank, seed)
        if np.array_equal(factors.a_RI, a_SI):
            modules[name] = factors
            continue
        # The rows of a_SI are orthonormal, so its transpose projects.
        mixed_RS = factors.a_RI.astype(np.float64) @ a_SI.T.astype(np.float64)
        b_OS = (factors.b_OR.astype(np.float64) @ mixed_RS).astype(np.float32)
        modules[name] = Factors(a_RI=a_SI, b_OR=b_OS)
    return AdapterState(base_digest=start.base_digest, modules=modules)


def with_rest(state: AdapterState, whole: AdapterState, *, from_column: int) -> AdapterState:
    """`state` whose B has the columns of `whole` from that one on; both over one A."""
    modules = {}
    for name, factors in state.modules.items():
        b_OR = factors.b_OR.copy()
        if name in whole.modules:
            b_OR[:, from_column:] = whole.modules[name].b_OR[:, from_column:]
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
    return AdapterState(base_digest=state.base_digest, modules=modules)


@lru_cache(maxsize=512)
def _a_of(name: str, shape: tuple[int, int], rank: int, seed: int) -> FloatArray:
    """Each layer's own; of equal layers with one A, training would see them as one."""
    mixed = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    a_RI = shared_a(shape, rank, int.from_bytes(mixed[:4], "big"))
    a_RI.flags.writeable = False  # one array for all who ask
    return a_RI
