"""How many tokens an answer still has, from what the model shows while it decodes.

Features: position, entropy and probability of the end (now and over the last 16 tokens), length
and wording of the prompt. The model is ridge regression on their products, onto the logarithm of
the tokens left: a few hundred multiplications, every few tokens. Answers cut at 256 tokens are
learned as that long.

Legend: N rows, F features.
"""

from __future__ import annotations

import io
import json
import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
EVERY_TOKENS = 4
_WINDOW = 16
_SHORT = re.compile(
    r"\b(yes or no|one word|single word|true or false|classify|which of|select|choose|answer with|"
    r"what is the (?:name|capital|year|number)|how many|convert|translate|correct|fill in)\b",
    re.IGNORECASE,
)
_LONG = re.compile(
    r"\b(essay|story|write|compose|describe|explain|list|steps?|plan|blog|letter|email|detailed|"
    r"paragraphs?|outline|draft|recipe|code|function|program|resume|summary of)\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\b\d+\b")
N_PROMPT = 5


def prompt_features(prompt: str, prompt_tokens: int) -> tuple[float, ...]:
    """What the question says of the answer's length; numbers near one."""
    return (
        float(np.log1p(prompt_tokens)) / 5.0,
        min(len(_SHORT.findall(prompt)), 3) / 3.0,
        min(len(_LONG.findall(prompt)), 5) / 5.0,
        min(len(_NUMBERS.findall(prompt)), 8) / 8.0,
        float(prompt.rstrip().endswith("?")),
    )


@dataclass(frozen=True, kw_only=True)
class LengthModel:
    """Weights over the products of features, and the error on answers it was not fitted to.

    `log_spread` is the standard deviation of the error in the logarithm of the tokens left.
    """

    weights_F: Vector
    mae_tokens: float
    constant_mae_tokens: float
    log_spread: float

    def left(self, row: Vector) -> float:
        """Tokens left for a row of (position, 4 of decoding, 5 of the prompt); at least 1."""
        return float(guessed(expanded(row[None, :])[0] @ self.weights_F))


def guessed(fitted_N: Vector) -> Vector:
    """Tokens left from what the weights give."""
    return np.asarray(np.exp(np.clip(fitted_N, 0.0, 7.0)))


def expanded(rows_NF: Vector) -> Vector:
    """Features, their squares and products, and one."""
    scaled = rows_NF * _SCALE
    k = scaled.shape[1]
    products = [scaled[:, i] * scaled[:, j] for i in range(k) for j in range(i, k)]
    return np.column_stack([np.ones(len(scaled)), scaled, np.log1p(rows_NF[:, 0]), *products])


_SCALE = np.array([1 / 128, 0.3, 0.3, 0.15, 0.15, *([1.0] * N_PROMPT)])


def fit_length(rows_NF: Vector, left_N: Vector, *, ridge: float = 3.0) -> Vector:
    """Weights (F,) of the expanded features onto log tokens left."""
    x_NF = expanded(rows_NF)
    square = x_NF.T @ x_NF + ridge * np.eye(x_NF.shape[1])
    return np.asarray(np.linalg.solve(square, x_NF.T @ np.log(np.maximum(left_N, 1.0))))


class LengthPredictor:
    """One answer's tokens left, updated as it is decoded."""

    def __init__(self, model: LengthModel, *, prompt: str, prompt_tokens: int) -> None:
        self._model = model
        self._prompt = prompt_features(prompt, prompt_tokens)
        self._entropy: deque[float] = deque(maxlen=_WINDOW)
        self._end: deque[float] = deque(maxlen=_WINDOW)
        self._n = 0

    def seen(self, entropy: float, end_probability: float) -> None:
        """Another token's distribution: its entropy in nats and the probability of the end."""
        self._entropy.append(entropy)
        self._end.append(float(np.log10(max(end_probability, 1e-8))))
        self._n += 1

    def left(self, *, most: int) -> float:
        """Tokens left, between 1 and `most`."""
        if not self._entropy:
            return float(most)
        row = np.array(
            [
                self._n - 1,
                self._entropy[-1],
                sum(self._entropy) / len(self._entropy),
                self._end[-1],
                sum(self._end) / len(self._end),
                *self._prompt,
            ]
        )
        return min(max(self._model.left(row), 1.0), float(most))


@cache
def shipped_length_model() -> LengthModel:
    """The model that comes with Floe, made by `scripts/fit_length.py`."""
    text = (files("floe.power") / "data" / "length.json").read_text(encoding="utf-8")
    told = json.loads(text)
    return LengthModel(
        weights_F=np.array(told["weights"]),
        mae_tokens=float(told["mae_tokens"]),
        constant_mae_tokens=float(told["constant_mae_tokens"]),
        log_spread=float(told["log_spread"]),
    )


def recorded_rows() -> NDArray[np.float64]:
    """Recorded answers: prompt number, position, left, ended, 4 of decoding, 5 of the prompt."""
    data = (files("floe.power") / "data" / "lengths.npz").read_bytes()
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return np.asarray(archive["rows"], dtype=np.float64)
