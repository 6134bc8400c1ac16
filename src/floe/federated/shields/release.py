"""What may leave a device at all: listed float arrays, finite, of fitting shapes (bug-log C11)."""

from __future__ import annotations

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.start import on_shared_a
from floe.federated.update import AdapterState, Factors

_FLOATS = (np.float32, np.float64)


def releasable(state: AdapterState) -> AdapterState:
    """`state` as float32 arrays, where each of them may be released.

    Raises:
        BadUpdate: an array is of another type (noise would go round integers), is not finite, is
            empty, or its shape does not fit its partner.
    """
    if not state.modules:
        raise BadUpdate("the update has no modules", reason="zero_size")
    modules = {}
    for name, factors in state.modules.items():
        for side, array in (("A", factors.a_RI), ("B", factors.b_OR)):
            _check(f"{name} {side}", array)
        if factors.b_OR.shape[1] != factors.a_RI.shape[0]:
            raise BadUpdate(f"{name}: A and B have different ranks", reason="wrong_shape")
        modules[name] = Factors(
            a_RI=factors.a_RI.astype(np.float32), b_OR=factors.b_OR.astype(np.float32)
        )
    return AdapterState(base_digest=state.base_digest, modules=modules)


def _check(what: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in _FLOATS:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise BadUpdate(
            f"{what} is {kind}; only float32 and float64 arrays are released, for noise and "
            "clipping would go round anything else",
            reason="not_float",
        )
    if array.ndim != 2 or array.size == 0:
        raise BadUpdate(f"{what} has the shape {array.shape}; 2 sides above 0 are needed",
                        reason="wrong_shape")  # fmt: skip
    if not np.isfinite(array).all():
        raise BadUpdate(f"{what} holds a value that is not finite", reason="not_finite")


def over_shared_a(state: AdapterState, *, rank: int, a_seed: int) -> AdapterState:
    """`state` written over the shared A at `rank`, exactly.

    Raises:
        BadUpdate: its rows are not in the shared A's span: it was not trained with A frozen, and
            noise on B would not protect it.
    """
    shared = on_shared_a(state, rank=rank, seed=a_seed)
    for name, factors in state.modules.items():
        mine = shared.modules[name]
        # Rows of the shared A are orthonormal, so norms of B are norms of products.
        lost = _squared(factors) - float(np.sum(mine.b_OR.astype(np.float64) ** 2))
        if lost > 1e-4 * max(_squared(factors), 1e-12):
            raise BadUpdate(
                f'{name}: A is not the federation\'s shared one; train with mode "freeze-a" and '
                "the server's a_seed",
                reason="other_a",
            )
    return shared


def _squared(factors: Factors) -> float:
    """The squared Frobenius norm of the product."""
    a_RI, b_OR = factors.a_RI.astype(np.float64), factors.b_OR.astype(np.float64)
    return float(np.vdot(b_OR.T @ b_OR, a_RI @ a_RI.T))
