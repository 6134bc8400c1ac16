"""Draw a token from the mix, and say whether the SLM alone would have drawn it.

V = the SLM's real ids. One uniform number is used for each token, so a stream that loses the
cloud goes on with the very numbers an edge-only stream with the same seed would use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.request import Sampling
from floe.core.token import TopToken

LogProbs = NDArray[np.floating]
Probs = NDArray[np.float64]
GREEDY_UP_TO = 0.01  # division by less only makes infinities (bug-log A53)
_NUCLEUS_GUESSES = (1024, 8192)  # sorting a whole vocabulary takes milliseconds


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A drawn id and the one the SLM alone would have drawn from the same number."""

    id: int
    edge_id: int


class Sampler:
    """Temperature, top_p and seed of one request. Unset means off (bug-log A56)."""

    def __init__(self, sampling: Sampling) -> None:
        self._temperature, self._top_p = sampling.temperature, sampling.top_p
        seed = sampling.seed
        self._rng = np.random.default_rng(None if seed is None else seed % 2**64)
        self._uniforms: list[float] = []

    def propose(self, log_q_V: LogProbs, place: int) -> int:
        """What the SLM alone draws at the answer's token number `place`."""
        return self.draw(log_q_V, log_q_V, place).id

    def _uniform(self, place: int) -> float:
        while len(self._uniforms) <= place:
            self._uniforms.append(float(self._rng.random()))
        return self._uniforms[place]

    def draw(self, log_q_V: LogProbs, log_f_V: LogProbs, place: int) -> Choice:
        """A token from f, coupled with the SLM's own draw from q as closely as can be.

        x is drawn from q; it stays with probability min(1, f(x)/q(x)), else the token comes from
        the positive part of f - q. The result follows f exactly and differs from x with
        probability TV(f, q), the least possible. Temperature and top_p shape q and f alike.
        When both are the same array the SLM's draw is the draw. The uniform number belongs to
        the `place`, so a draft that is checked later is checked with the number it was drawn by.
        """
        if self._temperature <= GREEDY_UP_TO:
            edge = int(np.argmax(log_q_V))
            return Choice(id=edge if log_f_V is log_q_V else int(np.argmax(log_f_V)), edge_id=edge)
        uniform = self._uniform(place)
        q_V = shape(log_q_V, self._temperature, self._top_p)
        edge, rest = pick(q_V, uniform)
        if log_f_V is log_q_V:
            return Choice(id=edge, edge_id=edge)
        f_V = shape(log_f_V, self._temperature, self._top_p)
        kept = min(1.0, float(f_V[edge] / q_V[edge]))
        if rest < kept:
            return Choice(id=edge, edge_id=edge)
        excess_V = np.maximum(f_V - q_V, 0.0)
        if not excess_V.any():  # f equals q up to rounding
            return Choice(id=edge, edge_id=edge)
        other, _ = pick(excess_V, min((rest - kept) / (1.0 - kept), np.nextafter(1.0, 0.0)))
        return Choice(id=other, edge_id=edge)


def shape(log_probs_V: LogProbs, temperature: float, top_p: float) -> Probs:
    """Probabilities after temperature and top_p; they sum to 1."""
    scaled_V = np.asarray(log_probs_V, dtype=np.float64) / temperature
    scaled_V -= scaled_V.max()
    probs_V: Probs = np.exp(scaled_V)
    probs_V /= probs_V.sum()
    return _nucleus(probs_V, top_p) if top_p < 1.0 else probs_V


def pick(weights_V: Probs, uniform: float) -> tuple[int, float]:
    """The id under `uniform` in [0, 1), and where in its own interval the number fell, in [0, 1).

    The second value is again uniform and independent of the id.
    """
    sums_V = np.cumsum(weights_V)
    target = uniform * sums_V[-1]
    token = min(int(np.searchsorted(sums_V, target, side="right")), len(sums_V) - 1)
    if weights_V[token] == 0.0:  # rounding at the very end
        token = int(np.flatnonzero(weights_V)[-1])
    before = sums_V[token - 1] if token else 0.0
    rest = float((target - before) / weights_V[token])
    return token, min(max(rest, 0.0), float(np.nextafter(1.0, 0.0)))


def best(
    log_probs_V: LogProbs, k: int, token_bytes: Callable[[int], bytes]
) -> tuple[TopToken, ...]:
    """The k likeliest tokens, best first; those of probability 0 are left out (bug-log A52)."""
    if k <= 0:
        return ()
    return tuple(
        TopToken(id=int(i), data=token_bytes(int(i)), log_prob=float(log_probs_V[i]))
        for i in _largest(log_probs_V, min(k, len(log_probs_V)))
        if np.isfinite(log_probs_V[i])
    )


def _largest(values_V: NDArray[np.floating], k: int) -> NDArray[np.intp]:
    """Ids of the k largest values in falling order; equal values by id."""
    some = np.argpartition(values_V, -k)[-k:] if k < len(values_V) else np.arange(k)
    return some[np.lexsort((some, -values_V[some]))]


def _nucleus(probs_V: Probs, top_p: float) -> Probs:
    """The smallest set of likeliest tokens with a mass of at least `top_p`, scaled to 1."""
    for guess in (*_NUCLEUS_GUESSES, len(probs_V)):
        order = _largest(probs_V, min(guess, len(probs_V)))
        sums = np.cumsum(probs_V[order])
        if sums[-1] >= top_p:
            break
    kept = order[: int(np.searchsorted(sums, top_p, side="left")) + 1]
    out_V = np.zeros_like(probs_V)
    out_V[kept] = probs_V[kept] / probs_V[kept].sum()
    return out_V
