"""Least squares for a few parameters, by Levenberg and Marquardt with numeric derivatives.

Legend: N rows, K parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_STEP = 1e-6
_DAMPING = (1e-12, 1e12)


def fit(residuals: Callable[[Vector], Vector], start_K: Vector, *, rounds: int = 300) -> Vector:
    """Positive parameters (K,) that make the sum of squared `residuals` (N,) small.

    The search runs in their logarithms, so every parameter stays positive. Deterministic.
    """
    at_K = np.log(np.asarray(start_K, dtype=np.float64))
    damping = 1e-2
    now_N = residuals(np.exp(at_K))
    for _ in range(rounds):
        slope_NK = _slope(residuals, at_K, now_N)
        square_KK, pull_K = slope_NK.T @ slope_NK, slope_NK.T @ now_N
        step_K = np.linalg.solve(
            square_KK + damping * (np.diag(np.diag(square_KK)) + 1e-9 * np.eye(len(at_K))), -pull_K
        )
        there_K = at_K + np.clip(step_K, -1.0, 1.0)
        then_N = residuals(np.exp(there_K))
        if np.isfinite(then_N).all() and then_N @ then_N < now_N @ now_N:
            small = abs(now_N @ now_N - then_N @ then_N) < 1e-12 * (now_N @ now_N)
            at_K, now_N, damping = there_K, then_N, max(damping / 3, _DAMPING[0])
            if small:
                break
        else:
            damping *= 4
            if damping > _DAMPING[1]:
                break
    return np.exp(at_K)


def _slope(
    residuals: Callable[[Vector], Vector], at_K: Vector, now_N: Vector
) -> NDArray[np.float64]:
    columns = []
    for k in range(len(at_K)):
        moved = at_K.copy()
        moved[k] += _STEP
        columns.append((residuals(np.exp(moved)) - now_N) / _STEP)
    return np.stack(columns, axis=1)


def mape(measured_N: Vector, modelled_N: Vector) -> float:
    """Mean absolute error in shares of the measured value."""
    return float(np.mean(np.abs(modelled_N - measured_N) / np.abs(measured_N)))
