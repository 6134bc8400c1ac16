"""Which updates look hostile, and means that a bounded number of them cannot move.

All on products: a device may turn its factors as it likes without changing what it sends.

Legend: N updates, O outputs of a linear layer, I its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from floe.core.errors import BadRound
from floe.federated.grams import cosines, squared_distances
from floe.federated.products import Doubles
from floe.federated.update import Factors, FloatArray

OVERSIZED = 4.0  # times the median norm
OPPOSED = -0.05  # median cosine to the others: sign flips of honest updates lie below
STRANGE = 0.1  # times the median of all clients' alignment
_ALIGNED = 0.1  # below it honest updates have too little in common to call one a stranger
_DENSE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How each update of a round lies among the others.

    `alignments` are median cosines to the others' changes. `hostile` names the clients whose norm
    is above `OVERSIZED` medians, or that point against or far beside the rest.
    """

    clients: tuple[str, ...]
    norms: tuple[float, ...]
    alignments: tuple[float, ...]
    hostile: tuple[str, ...]


def diagnose(clients: Sequence[str], gram_NN: Doubles) -> Diagnosis:
    """The diagnosis from the inner products of the changes; right while most are honest."""
    norms = np.sqrt(np.maximum(np.diag(gram_NN), 0.0))
    cosine_NN = cosines(gram_NN)
    n = len(clients)
    aligned = np.array([np.median(np.delete(cosine_NN[i], i)) if n > 1 else 1.0 for i in range(n)])
    usual = float(np.median(aligned)) if n else 0.0
    odd = (norms > OVERSIZED * np.median(norms)) | (aligned < OPPOSED)
    if usual >= _ALIGNED:
        odd |= aligned < STRANGE * usual
    return Diagnosis(
        clients=tuple(clients),
        norms=tuple(float(x) for x in norms),
        alignments=tuple(float(x) for x in aligned),
        hostile=tuple(c for c, bad in zip(clients, odd, strict=True) if bad),
    )


def refuse_above(diagnosis: Diagnosis, *, max_hostile: int) -> None:
    """Pass when no more updates look hostile than the round was set up to bear.

    Raises:
        BadRound: more do; the message names them.
    """
    if len(diagnosis.hostile) > max_hostile:
        raise BadRound(
            f"{len(diagnosis.hostile)} of {len(diagnosis.clients)} updates look hostile, the bound "
            f"is {max_hostile}: {', '.join(diagnosis.hostile[:8])}; the last good adapter stays"
        )


def multi_krum(gram_NN: Doubles, *, max_hostile: int) -> tuple[int, ...]:
    """The N - max_hostile updates nearest to their own nearest neighbours, in order.

    Each is scored by its summed squared distance to its N - max_hostile - 2 nearest. With none
    hostile that is all of them.

    Raises:
        BadRound: fewer than 2 * max_hostile + 3 updates.
    """
    n = len(gram_NN)
    if max_hostile == 0:
        return tuple(range(n))
    if n < 2 * max_hostile + 3:
        raise BadRound(
            f"multi-Krum bears {max_hostile} hostile updates among {2 * max_hostile + 3} or more; "
            f"only {n} came"
        )
    gaps_NN = np.sort(squared_distances(gram_NN), axis=1)[:, 1:]
    scores_N = gaps_NN[:, : n - max_hostile - 2].sum(axis=1)
    best = np.argsort(scores_N, kind="stable")[: n - max_hostile]
    return tuple(sorted(int(i) for i in best))


def trimmed_mean(parts: Sequence[Factors], *, trim: int) -> FloatArray:
    """(O, I): per coordinate of the products, the mean without the `trim` least and greatest."""
    rows = []
    for block_NOI in _dense_blocks(parts):
        block_NOI.sort(axis=0)
        rows.append(block_NOI[trim : len(parts) - trim].mean(axis=0))
    return np.concatenate(rows)


def coordinate_median(parts: Sequence[Factors]) -> FloatArray:
    """(O, I): the median of each coordinate of the products."""
    return np.concatenate([np.median(block, axis=0) for block in _dense_blocks(parts)])


def _dense_blocks(parts: Sequence[Factors]) -> Iterator[FloatArray]:
    """The products of all updates, some rows at a time."""
    n_outputs, n_inputs = parts[0].shape
    height = max(1, _DENSE_BYTES // (4 * n_inputs * len(parts)))
    for low in range(0, n_outputs, height):
        yield np.stack([f.b_OR[low : low + height] @ f.a_RI for f in parts])
