"""The soft gate: cosines to adapters' centroids in, shares of a few adapters out. Pure arithmetic.

Legend: K adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 20
"""Shares are multiples of 1/20, so that equal routes are equal keys and composed mixes re-used."""


@dataclass(frozen=True, kw_only=True)
class Gated:
    """`shares`: (index, share) of the chosen, largest first, summing to 1; empty = plain base.

    `softmax` holds the shares over all K candidates, before any choice.
    """

    shares: tuple[tuple[int, float], ...]
    softmax: tuple[float, ...]


def gate(
    cos_K: Sequence[float],
    *,
    temperature: float,
    top_k: int,
    threshold: float,
    min_share: float,
) -> Gated:
    """Shares ~ exp(cos / temperature); the best `top_k` that have `min_share`, scaled to sum to 1.

    The best one always stays. With the best cosine below `threshold`, or no candidate, nothing is
    chosen. Ties go to the lower index. `temperature` > 0, `top_k` >= 1, cosines finite.
    """
    if len(cos_K) == 0:
        return Gated(shares=(), softmax=())
    values_K = np.asarray(cos_K, dtype=np.float64)
    weights_K = np.exp((values_K - values_K.max()) / temperature)
    softmax_K = weights_K / weights_K.sum()
    shares: tuple[tuple[int, float], ...] = ()
    if values_K.max() >= threshold:
        order = np.argsort(-softmax_K, kind="stable")[:top_k]
        chosen = [int(k) for n, k in enumerate(order) if n == 0 or softmax_K[k] >= min_share]
        units = in_steps(softmax_K[chosen])
        shares = tuple((k, u / STEPS) for k, u in zip(chosen, units, strict=True) if u)
    return Gated(shares=shares, softmax=tuple(softmax_K.tolist()))


def in_steps(weights: NDArray[np.float64]) -> list[int]:
    """Weights scaled and rounded to whole steps that sum to STEPS, each as near as can be.

    Largest remainders are rounded up; ties go to the earlier one.
    """
    exact = weights / weights.sum() * STEPS
    units = np.floor(exact).astype(int)
    missing = STEPS - int(units.sum())
    for index in np.argsort(-(exact - units), kind="stable")[:missing]:
        units[index] += 1
    return [int(u) for u in units]
