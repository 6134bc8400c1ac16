"""What each setting costs on this very board: a prior table, corrected by every step seen.

Legend: S settings.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from floe.power.base import Phase, Step
from floe.power.boards.model import BoardModel

Vector = NDArray[np.float64]
_SHARED_RATE, _OWN_RATE = 0.15, 0.3
_MOST = 2.5  # a correction beyond e^2.5 is a broken clock, not a board


class OnlineCosts:
    """Milliseconds and watts of a step at every setting.

    A factor shared by all settings follows every step, one of each setting's own follows its
    steps: the first carries over to settings not tried, the second tells them apart.
    """

    def __init__(self, prior: BoardModel) -> None:
        self._prior = prior
        size = prior.n_settings
        self._shared = {(p, k): 0.0 for p in ("prefill", "decode") for k in ("ms", "w")}
        self._own_S = {key: np.zeros(size) for key in self._shared}
        self._factor_S = {key: np.ones(size) for key in self._shared}

    def ms(self, phase: Phase, *, prompt_tokens: int, done: int, load: float = 0.0) -> Vector:
        """Milliseconds (S,) of the whole prefill, or of one token."""
        if phase == "prefill":
            base_S = self._prior.prefill_ms(prompt_tokens)
        else:
            base_S = self._prior.decode_ms(prompt_tokens + done)
        made: Vector = base_S * self._factor_S[phase, "ms"]
        if load > 0.0:
            made /= 1.0 - min(load, 0.95)
        return made

    def watts(self, phase: Phase) -> Vector:
        """Watts (S,) while the phase runs."""
        base_S = self._prior.prefill_w_S if phase == "prefill" else self._prior.decode_w_S
        made: Vector = base_S * self._factor_S[phase, "w"]
        return made

    def seen(self, step: Step, *, prompt_tokens: int, done: int, load: float) -> None:
        """Learn from a step; one without a known energy teaches time only."""
        if step.phase == "idle" or step.duration_ms <= 0:
            return
        at = self._prior.index_of(step.clocks)
        expected_S = self.ms(step.phase, prompt_tokens=prompt_tokens, done=done, load=load)
        took_ms = step.duration_ms / (step.tokens if step.phase == "decode" else 1)
        self._learn(step.phase, "ms", at, took_ms / float(expected_S[at]))
        if step.energy_j is not None and step.energy_j > 0:
            drew_w = 1000 * step.energy_j / step.duration_ms
            self._learn(step.phase, "w", at, drew_w / float(self.watts(step.phase)[at]))

    def _learn(self, phase: Phase, kind: str, at: int, ratio: float) -> None:
        key, error = (phase, kind), _clipped(math.log(max(ratio, 1e-3)))
        self._own_S[key][at] = _clipped(float(self._own_S[key][at]) + _OWN_RATE * error)
        rest = (1 - _OWN_RATE) * error
        self._shared[key] = _clipped(self._shared[key] + _SHARED_RATE * rest)
        self._factor_S[key] = np.exp(self._shared[key] + self._own_S[key])


def _clipped(value: float) -> float:
    return min(max(value, -_MOST), _MOST)
