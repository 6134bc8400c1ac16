"""Inner products between many adapters at once, of their products and never of raw factors.

Legend: N adapters, S stacked ranks of all of them, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floe.federated.products import Doubles
from floe.federated.update import AdapterState


def gram(states: Sequence[AdapterState]) -> Doubles:
    """(N, N): the inner product of each two adapters; a module one lacks counts as nothing.

    One stack per module: sum over blocks of (A_i A_j^T) * (B_i^T B_j), in float64.
    """
    total_NN = np.zeros((len(states), len(states)))
    for name in sorted({n for s in states for n in s.modules}):
        having = [k for k, s in enumerate(states) if name in s.modules]
        parts = [states[k].modules[name] for k in having]
        a_SI = np.concatenate([f.a_RI for f in parts]).astype(np.float64)
        bt_SO = np.concatenate([f.b_OR.T for f in parts]).astype(np.float64)
        both_SS = (a_SI @ a_SI.T) * (bt_SO @ bt_SO.T)
        firsts = np.concatenate([[0], np.cumsum([f.rank for f in parts])[:-1]])
        blocks = np.add.reduceat(np.add.reduceat(both_SS, firsts, axis=0), firsts, axis=1)
        total_NN[np.ix_(having, having)] += blocks
    return total_NN


def change_gram(states: Sequence[AdapterState], start: AdapterState | None) -> Doubles:
    """`gram` of what each adapter changed against the one all began with.

    Adapters that start from one share most of what they are; what they learned is the change.
    """
    if start is None:
        return gram(states)
    whole = gram([*states, start])
    to_start_N, size = whole[:-1, -1], whole[-1, -1]
    changed: Doubles = whole[:-1, :-1] - to_start_N[:, None] - to_start_N[None, :] + size
    return changed


def cosines(gram_NN: Doubles) -> Doubles:
    """Cosines in [-1, 1] from inner products; 0 to an adapter that is nothing, 1 to itself."""
    size_N = np.sqrt(np.maximum(np.diag(gram_NN), 0.0))
    safe_N = np.where(size_N > 0.0, size_N, 1.0)
    out: Doubles = np.clip(gram_NN / safe_N[:, None] / safe_N[None, :], -1.0, 1.0)
    np.fill_diagonal(out, 1.0)
    return out


def squared_distances(gram_NN: Doubles) -> Doubles:
    """Squared Frobenius distances from inner products."""
    size_N = np.diag(gram_NN)
    out: Doubles = np.maximum(size_N[:, None] + size_N[None, :] - 2.0 * gram_NN, 0.0)
    np.fill_diagonal(out, 0.0)
    return out
