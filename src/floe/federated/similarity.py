"""How alike the changes of adapters are, from their products in factored form.

Legend: N adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floe.core.errors import BadConfig
from floe.federated.grams import change_gram, cosines
from floe.federated.products import Doubles, angles_between, cut, state_difference, svd
from floe.federated.update import AdapterState, Factors

SIMILARITIES = ("cosine", "angles")


def similarity(
    states: Sequence[AdapterState], *, start: AdapterState | None = None, kind: str = "cosine"
) -> Doubles:
    """(N, N) similarities of what adapters changed against `start`; 1 on the diagonal.

    "cosine": of the products as vectors, in [-1, 1]. "angles": over modules, the mean root of the
    mean squared cosines of principal angles of columns and of rows, in [0, 1]; blind to sign and
    scale.

    Raises:
        BadConfig: no such kind.
    """
    if kind == "cosine":
        return cosines(change_gram(states, start))
    if kind == "angles":
        return _by_angles([state_difference(s, start) for s in states], [s.rank for s in states])
    raise BadConfig(
        f"no similarity of updates named {kind!r}; known: {', '.join(SIMILARITIES)}",
        param="similarity",
    )


def _by_angles(changes: Sequence[AdapterState], ranks: Sequence[int]) -> Doubles:
    total_NN = np.zeros((len(changes), len(changes)))
    count_NN = np.zeros_like(total_NN)
    for name in sorted({n for s in changes for n in s.modules}):
        found = {
            k: svd(_at_rank(s.modules[name], ranks[k]))
            for k, s in enumerate(changes)
            if name in s.modules
        }
        for i, one in found.items():
            for j, other in found.items():
                if j > i:
                    columns, rows = angles_between(one, other)
                    if columns.size:
                        common = np.mean(np.cos(columns) ** 2) * np.mean(np.cos(rows) ** 2)
                        total_NN[i, j] += np.sqrt(common)
                    count_NN[i, j] += 1
    out: Doubles = (total_NN + total_NN.T) / np.maximum(count_NN + count_NN.T, 1)
    np.fill_diagonal(out, 1.0)
    return out


def _at_rank(factors: Factors, rank: int) -> Factors:
    """A change at a device's rank: what is beyond it in a difference is its start's."""
    return factors if factors.rank <= rank else cut(factors, rank).factors
