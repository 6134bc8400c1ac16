"""How well groups are apart.

Legend: N clients, K groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floe.federated.products import Doubles

Labels = NDArray[np.int64]


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
