"""Fit the output-length predictor to recorded answers, and say how far it errs on others.

    python scripts/fit_length.py src/floe/power/data/length.json

The first two thirds of the prompts, whose order was drawn by seed, are fitted on; the ridge is
chosen by cross-validation among them, by prompt. The last third is used once, for the errors in
the file. (The predictor's word lists were made in sight of the first 70 prompts.)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from floe.core.files import atomic_write
from floe.power.length import RECORDED_TOKENS, fit_length, predicted, recorded_rows

SEED, FOLDS, DRAWS = 31, 5, 3
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def features(rows: np.ndarray) -> np.ndarray:
    """Position, four of decoding, eight of the prompt."""
    return np.column_stack([rows[:, 1], rows[:, 4:]])


def fit(rows: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Both weights."""
    return fit_length(features(rows), rows[:, 2], rows[:, 3], ridge=ridge)


def guesses(rows: np.ndarray, weights: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Tokens left; the limit of 256 is known while serving, too."""
    return np.clip(predicted(features(rows), *weights), 1.0, RECORDED_TOKENS - rows[:, 1])


def mae(rows: np.ndarray, guessed: np.ndarray) -> float:
    """Mean absolute error in tokens."""
    return float(np.abs(guessed - rows[:, 2]).mean())


def cross_validated(rows: np.ndarray, ridge: float) -> float:
    """Mean error over folds by prompt."""
    errors = []
    for draw in range(DRAWS):
        names = np.random.default_rng(SEED + draw).permutation(np.unique(rows[:, 0]))
        for k in range(FOLDS):
            held = np.isin(rows[:, 0], names[k::FOLDS])
            errors.append(mae(rows[held], guesses(rows[held], fit(rows[~held], ridge))))
    return float(np.mean(errors))


def main() -> None:
    """Fit, judge, write."""
    rows = recorded_rows()
    names = np.unique(rows[:, 0])
    n_fitted = 2 * len(names) // 3
    held = np.isin(rows[:, 0], names[n_fitted:])
    fitted, other = rows[~held], rows[held]
    tried = {ridge: cross_validated(fitted, ridge) for ridge in RIDGES}
    ridge = min(tried, key=lambda r: tried[r])
    weights = fit(fitted, ridge)
    guessed = guesses(other, weights)
    constant = float(np.median(fitted[:, 2]))
    told = {
        "prompts_fitted": n_fitted,
        "prompts_held_out": len(names) - n_fitted,
        "ridge": ridge,
        "mae_tokens": round(mae(other, guessed), 3),
        "constant_mae_tokens": round(mae(other, np.full(len(other), constant)), 3),
        "to_the_limit_mae_tokens": round(mae(other, RECORDED_TOKENS - other[:, 1]), 3),
        "log_spread": round(float(np.log(np.maximum(other[:, 2], 1.0) / guessed).std()), 3),
    }
    print(told, tried)
    told |= {"long": np.round(weights[0], 6).tolist(), "left": np.round(weights[1], 6).tolist()}
    with atomic_write(Path(sys.argv[1])) as file:
        file.write((json.dumps(told) + "\n").encode())


if __name__ == "__main__":
    main()
