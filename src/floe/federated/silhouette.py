"""How well groups are apart, and whether there is anything to group.

Legend: N clients, K groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floe.federated.products import Doubles

Labels = NDArray[np.int64]
_STEPS = 50


def silhouette(distances_NN: Doubles, labels_N: Labels) -> float:
    """The mean silhouette, 0 for one group; a client alone counts 0 (Rousseeuw)."""
    member_KN = labels_N[None, :] == np.unique(labels_N)[:, None]
    if len(member_KN) < 2:
        return 0.0
    sizes_K = member_KN.sum(axis=1)
    sums_NK = distances_NN @ member_KN.T
    own_N = member_KN.argmax(axis=0)
    rows = np.arange(len(labels_N))
    own_size_N = sizes_K[own_N]
    inside_N = sums_NK[rows, own_N] / np.maximum(own_size_N - 1, 1)
    means_NK = sums_NK / sizes_K
    means_NK[rows, own_N] = np.inf
    outside_N = means_NK.min(axis=1)
    larger_N = np.maximum(inside_N, outside_N)
    widths_N = np.where(
        (own_size_N > 1) & (larger_N > 0.0),
        (outside_N - inside_N) / np.where(larger_N > 0.0, larger_N, 1.0),
        0.0,
    )
    return float(widths_N.mean())


def beyond_one_task(similar_NN: Doubles) -> float:
    """The share of the similarities, in [0, 1], that one task does not explain.

    Devices that learn one task, each with a share of noise, are similar by the product of how
    well each learned it: the similarities off the diagonal have one factor. Of those, the norm of
    what one factor leaves over the norm of all.
    """
    n = len(similar_NN)
    off_NN = ~np.eye(n, dtype=bool)
    whole = float(np.linalg.norm(similar_NN[off_NN]))
    if n < 3 or whole == 0.0:
        return 0.0
    work_NN = similar_NN.copy()
    factor_N = np.full(n, np.sqrt(max(float(similar_NN[off_NN].mean()), 0.0)))
    for _ in range(_STEPS):
        np.fill_diagonal(work_NN, factor_N**2)
        values, vectors_NN = np.linalg.eigh(work_NN)
        factor_N = np.abs(np.sqrt(max(float(values[-1]), 0.0)) * vectors_NN[:, -1])
    left_NN = similar_NN - np.outer(factor_N, factor_N)
    return min(1.0, float(np.linalg.norm(left_NN[off_NN])) / whole)
