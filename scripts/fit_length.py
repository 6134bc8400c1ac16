"""Fit the output-length predictor to recorded answers, and say how far it errs on others.

    python scripts/fit_length.py src/floe/power/data/length.json

Two thirds of the prompts, drawn by seed, are fitted on; the ridge is chosen by cross-validation
among them, by prompt. The other third is used once, for the errors in the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from floe.core.files import atomic_write
from floe.power.length import expanded, fit_length, guessed, recorded_rows

SEED, FOLDS, MOST = 31, 5, 256
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def mae(rows: np.ndarray, weights: np.ndarray) -> float:
    """Mean absolute error in tokens."""
    return float(np.abs(predicted(rows, weights) - rows[:, 2]).mean())


def predicted(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Tokens left; the limit of 256 is known while serving, too."""
    made = guessed(expanded(features(rows)) @ weights)
    return np.clip(made, 1.0, MOST - rows[:, 1])


def features(rows: np.ndarray) -> np.ndarray:
    """Position, four of decoding, five of the prompt."""
    return np.column_stack([rows[:, 1], rows[:, 4:]])


def cross_validated(rows: np.ndarray, ridge: float) -> float:
    """Mean error over folds by prompt."""
    names = np.random.default_rng(SEED).permutation(np.unique(rows[:, 0]))
    errors = []
    for k in range(FOLDS):
        held = np.isin(rows[:, 0], names[k::FOLDS])
        weights = fit_length(features(rows[~held]), rows[~held, 2], ridge=ridge)
        errors.append(mae(rows[held], weights))
    return float(np.mean(errors))


def main() -> None:
    """Fit, judge, write."""
    rows = recorded_rows()
    names = np.random.default_rng(SEED).permutation(np.unique(rows[:, 0]))
    held = np.isin(rows[:, 0], names[: len(names) // 3])
    fitted, other = rows[~held], rows[held]
    tried = {ridge: cross_validated(fitted, ridge) for ridge in RIDGES}
    ridge = min(tried, key=lambda r: tried[r])
    weights = fit_length(features(fitted), fitted[:, 2], ridge=ridge)
    constant = float(np.median(fitted[:, 2]))
    errors = np.log(np.maximum(other[:, 2], 1.0)) - np.log(predicted(other, weights))
    told = {
        "prompts_fitted": len(names) - len(names) // 3,
        "prompts_held_out": len(names) // 3,
        "ridge": ridge,
        "mae_tokens": round(mae(other, weights), 3),
        "constant_mae_tokens": round(float(np.abs(constant - other[:, 2]).mean()), 3),
        "log_spread": round(float(errors.std()), 3),
        "weights": np.round(weights, 6).tolist(),
    }
    with atomic_write(Path(sys.argv[1])) as file:
        file.write((json.dumps(told) + "\n").encode())
    print({k: v for k, v in told.items() if k != "weights"}, tried)


if __name__ == "__main__":
    main()
