"""How many tokens an answer still has, from what the model shows while it decodes.

Features: position, entropy and probability of the end (now and over the last 16 tokens), length
and wording of the prompt. On their products stand two small models: logistic regression on whether
the answer reaches 256 tokens, and, for those that do not, ridge regression onto the logarithm of
the tokens left. A few hundred multiplications, every few tokens. Answers were recorded up to 256
tokens: a longer one counts as that long, and past that place as 64 tokens from its end.

Legend: N rows, F expanded features.
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
    r"\b(yes or no|one word|single word|true or false|classify|identify|which of|select|choose|"
    r"answer with|rank|rating|title|label|what is the|relation|how many|convert|translate|correct|"
    r"fill in|complete the|rewrite|paraphrase|synonyms?|extract|edit)\b",
    re.IGNORECASE,
)
_LONG = re.compile(
    r"\b(essay|stor(?:y|ies)|write|compose|describe|explain|elaborate|lists?|steps?|plan|blog|"
    r"letter|e-?mail|detailed|paragraphs?|outline|draft|recipe|resume|summary of|create|craft|"
    r"generate|poem|song|rap|lyrics|itinerary|review|post|advice|ideas?|examples?|suggest|why|"
    r"checklist|template|design|develop|discuss)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"\b(def |function|code|program|script|sql)\b", re.IGNORECASE)
_AMOUNT = re.compile(r"\bhow (many|much|long|old|far)\b", re.IGNORECASE)
_NUMBERS = re.compile(r"\b\d+\b")
N_PROMPT = 8
RECORDED_TOKENS, _BEYOND_TOKENS = 256, 64


def prompt_features(prompt: str, prompt_tokens: int) -> tuple[float, ...]:
    """What the question says of the answer's length; numbers near one."""
    return (
        float(np.log1p(prompt_tokens)) / 5.0,
        min(len(_NUMBERS.findall(prompt)), 8) / 8.0,
        float(prompt.rstrip().endswith("?")),
        float(bool(_CODE.search(prompt))),
        float(bool(_AMOUNT.search(prompt))),
        min(len(_LONG.findall(prompt)), 5) / 5.0,
        min(len(_SHORT.findall(prompt)), 3) / 3.0,
        min(prompt.count("\n"), 6) / 6.0,
    )


@dataclass(frozen=True, kw_only=True)
class LengthModel:
    """Weights over the products of features, and the error on answers it was not fitted to.

    `long_F` is for reaching 256 tokens, `left_F` for the tokens left otherwise. `log_spread` is
    the standard deviation of the error in the logarithm of the tokens left.
    """

    long_F: Vector
    left_F: Vector
    mae_tokens: float
    constant_mae_tokens: float
    log_spread: float

    def left(self, row: Vector) -> float:
        """Tokens left for a row of (position, 4 of decoding, 8 of the prompt); at least 1."""
        return float(predicted(row[None, :], self.long_F, self.left_F)[0])


def predicted(rows_NF: Vector, long_F: Vector, left_F: Vector) -> Vector:
    """Tokens left (N,); at least 1."""
    x_NF = expanded(rows_NF)
    room_N = np.maximum(RECORDED_TOKENS - rows_NF[:, 0], _BEYOND_TOKENS)
    left_N = np.exp(np.clip(x_NF @ left_F, 0.0, 7.0))
    return np.where(x_NF @ long_F > 0.0, room_N, np.minimum(left_N, room_N))


def expanded(rows_NF: Vector) -> Vector:
    """Features, their squares and products, and one."""
    scaled = rows_NF * _SCALE
    return np.column_stack(
        [np.ones(len(scaled)), scaled, np.log1p(rows_NF[:, 0]), scaled[:, _I] * scaled[:, _J]]
    )


_SCALE = np.array([1 / 128, 0.3, 0.3, 0.15, 0.15, *([1.0] * N_PROMPT)])
_I, _J = np.triu_indices(len(_SCALE))


def fit_length(
    rows_NF: Vector, left_N: Vector, ended_N: Vector, *, ridge: float
) -> tuple[Vector, Vector]:
    """`long_F` and `left_F`; `ended_N` says which answers ended by themselves.

    Both are penalised by `ridge`. A row weighs what is at stake for the first: the room left.
    """
    x_NF = expanded(rows_NF)
    penalty_FF = ridge * np.eye(x_NF.shape[1])
    stake_N = (RECORDED_TOKENS - rows_NF[:, 0]) / 128.0
    long_F = np.zeros(x_NF.shape[1])
    for _ in range(_ROUNDS):
        p_N = 1.0 / (1.0 + np.exp(-np.clip(x_NF @ long_F, -30.0, 30.0)))
        pull_F = x_NF.T @ (stake_N * (p_N - (1.0 - ended_N))) + ridge * long_F
        curve_N = stake_N * p_N * (1.0 - p_N)
        long_F = long_F - np.linalg.solve((x_NF * curve_N[:, None]).T @ x_NF + penalty_FF, pull_F)
    own_NF, own_N = x_NF[ended_N > 0.5], np.log(np.maximum(left_N[ended_N > 0.5], 1.0))
    left_F = np.linalg.solve(own_NF.T @ own_NF + penalty_FF, own_NF.T @ own_N)
    return long_F, np.asarray(left_F)


_ROUNDS = 25


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
        long_F=np.array(told["long"]),
        left_F=np.array(told["left"]),
        mae_tokens=float(told["mae_tokens"]),
        constant_mae_tokens=float(told["constant_mae_tokens"]),
        log_spread=float(told["log_spread"]),
    )


def recorded_rows() -> NDArray[np.float64]:
    """Recorded answers: prompt number, position, left, ended, 4 of decoding, 8 of the prompt."""
    data = (files("floe.power") / "data" / "lengths.npz").read_bytes()
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return np.asarray(archive["rows"], dtype=np.float64)
