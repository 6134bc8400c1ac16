"""Least squares with no negative unknowns, for costs that only add up. N = rows, U = unknowns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_HUBER = 1.5  # residuals beyond so many typical ones count less
_OUTLIER_ROUNDS = 5


def non_negative(a_NU: Floats, y_N: Floats) -> Floats:
    """The x >= 0 with the least |a x - y|: Lawson and Hanson's active sets."""
    n = a_NU.shape[1]
    x = np.zeros(n)
    passive = np.zeros(n, bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(a_NU.T @ y_N).max(initial=0.0)))
    for _ in range(6 * n + 20):
        gradient = a_NU.T @ (y_N - a_NU @ x)
        gradient[passive] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        passive[best] = True
        x = _settled(a_NU, y_N, x, passive)
    return x


def _settled(a_NU: Floats, y_N: Floats, x: Floats, passive: NDArray[np.bool_]) -> Floats:
    """Solve for the passive unknowns; those that would turn negative leave `passive`."""
    while passive.any():
        s = np.zeros_like(x)
        s[passive] = np.linalg.lstsq(a_NU[:, passive], y_N, rcond=None)[0]
        if (s[passive] > 0).all():
            return s
        low = passive & (s <= 0)
        gap = x[low] - s[low]
        step = float(np.min(np.divide(x[low], gap, out=np.zeros_like(gap), where=gap > 0)))
        x = x + step * (s - x)
        passive &= x > 1e-14
        x[~passive] = 0.0
    return np.zeros_like(x)


def robust_fit(
    a_NU: Floats, y_N: Floats, *, scale_N: Floats, beliefs_MU: Floats | None = None
) -> tuple[Floats, Floats]:
    """Non-negative x with small errors in units of `scale_N`, and each row's error without it.

    `beliefs_MU` are rows that should come to 0, in the same units. Rows far off (another process
    had the core) count less. The errors are a x - y (N,) of a fit without the row, by the hat
    matrix of the unknowns above zero; NaN for a row that alone fixes an unknown.
    """
    scaled, target = a_NU / scale_N[:, None], y_N / scale_N
    beliefs = np.zeros((0, a_NU.shape[1])) if beliefs_MU is None else beliefs_MU
    weights = np.ones(len(y_N))
    x = _solved(scaled, target, weights, beliefs)
    for _ in range(_OUTLIER_ROUNDS):
        residual = np.abs(scaled @ x - target)
        limit = _HUBER * 1.4826 * float(np.median(residual)) + 1e-9
        weights = np.minimum(1.0, limit / np.maximum(residual, 1e-12))
        x = _solved(scaled, target, weights, beliefs)
    return x, scale_N * _left_out(scaled, target, x, weights, beliefs)


def _solved(scaled_NU: Floats, target_N: Floats, weights_N: Floats, beliefs_MU: Floats) -> Floats:
    root = np.sqrt(weights_N)
    rows = np.concatenate([scaled_NU * root[:, None], beliefs_MU])
    return non_negative(rows, np.concatenate([target_N * root, np.zeros(len(beliefs_MU))]))


def _left_out(
    scaled_NU: Floats, target_N: Floats, x: Floats, weights_N: Floats, beliefs_MU: Floats
) -> Floats:
    root = np.sqrt(weights_N)
    rows = np.concatenate([scaled_NU * root[:, None], beliefs_MU])[:, x > 0]
    q, _ = np.linalg.qr(rows)
    free = 1.0 - (q[: len(root)] ** 2).sum(axis=1)
    error = scaled_NU @ x - target_N
    out: Floats = np.divide(error, free, out=np.full_like(error, np.nan), where=free > 1e-6)
    return out
