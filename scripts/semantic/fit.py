"""Logistic regression by L-BFGS, and Platt's calibration.

Legend: N windows, F features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
_MEMORY = 12


def fit(
    x_NF: FloatArray, y_N: FloatArray, weight_N: FloatArray, *, decay: float, steps: int
) -> FloatArray:
    """Weights (F,) that lower the weighted loss plus `decay` / 2 times their squared length."""
    sign_N = 2 * y_N - 1
    share_N = weight_N / weight_N.sum()
    theta_F = np.zeros(x_NF.shape[1], dtype=np.float32)

    def loss(at_F: FloatArray) -> tuple[float, FloatArray]:
        margin_N = (x_NF @ at_F) * sign_N
        wrong_N = 1 / (1 + np.exp(np.clip(margin_N, -30, 30)))
        value = float((share_N * np.logaddexp(0, -margin_N)).sum() + decay / 2 * (at_F @ at_F))
        return value, -(x_NF.T @ (share_N * sign_N * wrong_N)).astype(np.float32) + decay * at_F

    value, slope_F = loss(theta_F)
    moves: list[tuple[FloatArray, FloatArray]] = []
    for _ in range(steps):
        way_F = _direction(slope_F, moves)
        step = 1.0
        while True:
            new_F = theta_F - step * way_F
            new_value, new_slope_F = loss(new_F)
            if new_value <= value - 1e-4 * step * float(slope_F @ way_F) or step < 1e-6:
                break
            step /= 2
        move = (new_F - theta_F, new_slope_F - slope_F)
        if float(move[0] @ move[1]) > 1e-12:
            moves = [*moves, move][-_MEMORY:]
        done = abs(value - new_value) < 1e-7
        theta_F, value, slope_F = new_F, new_value, new_slope_F
        if done:
            break
    return theta_F


def _direction(slope_F: FloatArray, moves: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    way_F = slope_F.copy()
    parts = []
    for by_F, change_F in reversed(moves):
        part = float(by_F @ way_F) / float(by_F @ change_F)
        parts.append(part)
        way_F -= part * change_F
    if moves:
        by_F, change_F = moves[-1]
        way_F *= float(by_F @ change_F) / float(change_F @ change_F)
    for (by_F, change_F), part in zip(moves, reversed(parts), strict=True):
        way_F += by_F * (part - float(change_F @ way_F) / float(by_F @ change_F))
    return way_F


def platt(logit_N: FloatArray, y_N: FloatArray, weight_N: FloatArray) -> tuple[float, float]:
    """(slope, offset) that make 1 / (1 + exp(-(slope * logit + offset))) a probability."""
    x_NF = np.stack([logit_N / 4, np.ones_like(logit_N)], axis=1).astype(np.float32)
    slope, offset = fit(x_NF, y_N, weight_N, decay=1e-6, steps=200)
    return float(slope) / 4, float(offset)
