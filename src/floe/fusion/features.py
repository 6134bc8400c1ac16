"""One place of an answer in numbers: how sure each model is, and how far they agree.

V = the SLM's real ids, C = ids that the cloud's candidates fall on, F = features.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from floe.fusion.weigh import Seen

Features = NDArray[np.float64]
EDGE_NAMES = ("edge_entropy", "edge_top", "edge_doubt", "edge_margin")
NAMES = (
    *EDGE_NAMES,
    "cloud_entropy",
    "cloud_top",
    "cloud_doubt",
    "cloud_margin",
    "cloud_missing",
    "cloud_unasked",
    "agree",
    "overlap",
    "divergence",
    "edge_mass_on_sent",
    "edge_on_cloud_top",
    "cloud_on_edge_top",
    "route_confidence",
    "masked",
)
_TINY = 1e-6
_MOST_NATS = 12.0


def edge_features(log_q_V: NDArray[np.floating]) -> Features:
    """The SLM's own (4,): entropy in nats, top probability, -log of the rest, lead in nats."""
    q_V = np.exp(log_q_V)
    top = int(np.argmax(log_q_V))
    first = float(log_q_V[top])
    entropy = _entropy(q_V, log_q_V)
    q_top, q_V[top] = float(q_V[top]), -1.0
    second = max(float(q_V.max()), _TINY)
    return np.array([entropy, q_top, _doubt(q_top), min(max(first - log(second), 0.0), _MOST_NATS)])


def features(seen: Seen) -> Features:
    """Every feature (F,) of a place in the order of NAMES, without standardisation.

    Entropies and margins are in nats; what the cloud did not send counts as one more token.
    """
    edge = edge_features(seen.log_q_V)
    ids_C, p_C = seen.mapped.ids_C, seen.mapped.masses_C
    q_C = np.exp(seen.log_q_V[ids_C], dtype=np.float64)
    total = max(float(p_C.sum()), 1.0)
    p_C = p_C / total
    missing = max(0.0, 1.0 - float(p_C.sum()))
    best = int(np.argmax(p_C))
    p_top = float(p_C[best])
    second = float(np.partition(p_C, -2)[-2]) if len(p_C) > 1 else 0.0
    edge_top = int(np.argmax(seen.log_q_V))
    at_edge_top = np.flatnonzero(ids_C == edge_top)
    q_rest = max(0.0, 1.0 - float(q_C.sum()))
    both_q, both_p = np.append(q_C, q_rest), np.append(p_C, missing)
    return np.concatenate(
        [
            edge,
            [
                _entropy_of(both_p),
                p_top,
                _doubt(p_top),
                min(log(max(p_top, _TINY) / max(second, _TINY)), _MOST_NATS),
                missing,
                seen.advice.unasked,
                float(ids_C[best] == edge_top),
                float(np.minimum(both_q, both_p).sum()),
                _jensen_shannon(both_q, both_p),
                1.0 - q_rest,
                float(q_C[best]),
                float(p_C[at_edge_top[0]]) if len(at_edge_top) else 0.0,
                seen.standing.route_confidence,
                float(seen.standing.masked),
            ],
        ]
    )


def _doubt(top: float) -> float:
    return -log(max(1.0 - top, _TINY))


def _entropy(q_V: NDArray[np.floating], log_q_V: NDArray[np.floating]) -> float:
    with np.errstate(invalid="ignore"):  # 0 times -inf, seen to below
        total = float(np.dot(q_V, log_q_V))
    if np.isfinite(total):
        return max(0.0, -total)
    seen = q_V > 0.0  # 0 log 0 is 0, not NaN
    return max(0.0, -float(np.dot(q_V[seen], log_q_V[seen])))


def _entropy_of(probs: NDArray[np.float64]) -> float:
    kept = probs[probs > 0.0]
    return max(0.0, -float(np.dot(kept, np.log(kept))))


def _jensen_shannon(q: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    """In nats, from 0 (the same) to log 2."""
    middle = _entropy_of((q + p) / 2)
    return max(0.0, middle - (_entropy_of(q) + _entropy_of(p)) / 2)
