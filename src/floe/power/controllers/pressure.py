"""The price of time as a Lagrange multiplier: misses raise it, requests in time lower it.

A request that was slowed for the sake of energy makes those behind it wait, and leaves no slack
for another program that starts later. Neither shows in the request's own goals, so the price of
time follows what came of it: dual ascent on the share of missed goals. A wait that takes much of
a first token's slack counts as part of a miss, so that the price rises before goals are missed.

The multiplier moves on a scale from 0 (energy alone) to 1 (full speed); in between stand the
prices at which the board's next faster setting pays.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from floe.power.base import Goals
from floe.power.boards.model import BoardModel
from floe.power.optimum import lower_hull

_TARGET = 0.01  # the share of requests that may miss a goal which full speed would have met
_RATE = 0.2
_NEAR = 0.5  # of a first token's slack: from here on waiting counts
_HASTE, _BEHIND = 0.5, 1.0  # levels more where this request waited, where others wait now
_TOP = 3.0  # of the highest price: full speed beyond any hysteresis


class Pressure:
    """Counts misses that full speed would not have had."""

    def __init__(self, model: BoardModel) -> None:
        self._prices = _prices(model)
        self._places = np.linspace(0.0, 1.0, len(self._prices))
        self.level = 0.0
        self._goals: Goals | None = None
        self._clear()

    def begin(self, goals: Goals) -> None:
        """A request starts: what the one before came to moves the price."""
        if self._goals is not None:
            moved = self.level + _RATE * (self._missed(self._goals) - _TARGET)
            self.level = min(max(moved, 0.0), 1.0)
        self._goals = goals
        self._clear()

    def price(self, waiting: int) -> float:
        """In watts of full speed; `waiting` requests stand behind this one."""
        level = min(1.0, self.level + _HASTE * self._queued + (_BEHIND if waiting else 0.0))
        return float(np.interp(level, self._places, self._prices))

    def prefill(self, left_ms: float, fast_ms: float) -> None:
        """A prefill is about to start that takes `fast_ms` at full speed."""
        if self._goals is not None and fast_ms < self._goals.ttft_ms:
            slack_ms = self._goals.ttft_ms - fast_ms
            waited = (self._goals.ttft_ms - left_ms) / slack_ms
            self._queued = min(max(waited, 0.0), 1.0)
            self._waited = min(max((waited - _NEAR) / (1 - _NEAR), 0.0), 1.0)

    def decoded(self, tokens: int, took_ms: float, fast_ms: float) -> None:
        """Tokens that took `took_ms` together, and would have at full speed `fast_ms`."""
        self._tokens += tokens
        self._took_ms += took_ms
        self._fast_ms += fast_ms

    def _missed(self, goals: Goals) -> float:
        most_ms = goals.tpot_ms * self._tokens
        return max(self._waited, float(self._fast_ms <= most_ms < self._took_ms))

    def _clear(self) -> None:
        self._queued = 0.0
        self._waited = 0.0
        self._tokens, self._took_ms, self._fast_ms = 0, 0.0, 0.0


def _prices(model: BoardModel) -> list[float]:
    """Rising: nothing, then where each faster setting of the lower hull begins to pay."""
    ms_S = model.decode_ms(0)
    joules_S = ms_S * model.decode_w_S
    hull = lower_hull(ms_S, joules_S)
    full_w = float(model.decode_w_S[model.fastest])
    edges = [
        float(joules_S[a] - joules_S[b]) / (full_w * float(ms_S[b] - ms_S[a]))
        for a, b in pairwise(hull)
    ]
    rising = [1.02 * edge for edge in reversed(edges)]
    return [0.0, *rising, max([1.0, *(_TOP * edge for edge in rising)])]
