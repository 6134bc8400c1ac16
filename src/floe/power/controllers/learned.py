"""The learned controller: a small policy sets the price of time, costs learned online do the rest.

At each step it takes the setting with the least energy plus price times time, among those whose
time is within a margin of what the goals still allow. The policy (CLONE's two-layer network of
under 1,000 parameters, section B.5) gives margin and price from where the request stands; what
settings cost is a table of the board, corrected by every step (`controllers.online`).

Legend: S settings, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from floe.power.base import ControlState, Goals, Step
from floe.power.boards.model import BoardModel
from floe.power.controllers.online import OnlineCosts
from floe.power.controllers.policy import Policy
from floe.power.controllers.pressure import Pressure

N_FEATURES, N_OUTPUTS = 9, 2
Mode = Literal["performance", "balanced", "saver"]
STRETCH: Mapping[Mode, float] = {"performance": 0.5, "balanced": 1.0, "saver": 1.0}
_WIDEST = 0.35  # of a goal: how far the margin moves from its middle
_MIDDLE = 0.97
_HOT_SHARE = 0.9  # of the temperature limit: from here on the power is bounded (10 % margin)
_STAY = 0.003  # hysteresis: a change must save more than this share
_HOLD = 0.006  # of the goal: how much later a setting that is in force may be
_SURE_TOKENS = 8.0  # a change must pay its time back within so many tokens

Vector = NDArray[np.float64]


class Learned:
    """Chooses by learned costs. The same state and history give the same choice."""

    name = "learned"

    def __init__(self, model: BoardModel, policy: Policy, *, mode: Mode = "balanced") -> None:
        self._model, self._policy = model, policy
        self.costs = OnlineCosts(model)
        self.pressure = Pressure(model)
        self._stretch = STRETCH[mode]
        self._idle = model.thriftiest
        self._fast = model.fastest
        self._state: ControlState | None = None
        self._fast_ms = 0.0

    def begin(self, goals: Goals) -> None:
        """What the request before came to moves the price of time."""
        self.pressure.begin(goals)

    def decide(self, state: ControlState) -> dict[str, float]:
        """MHz by domain for the next step."""
        self._state = state
        now = self._model.index_of(state.clocks)
        if state.phase == "idle":
            saves = self._model.idle_w_S[now] > self._model.idle_w_S[self._idle] * (1 + _STAY)
            return self._model.clocks(self._idle if saves else now)
        ms_S = self.costs.ms(
            state.phase, prompt_tokens=state.prompt_tokens, done=state.tokens_done, load=state.load
        )
        self._fast_ms = float(ms_S[self._fast])
        allowed_ms = state.tpot_allowed_ms
        if state.phase == "prefill":
            allowed_ms = state.ttft_left_ms
            self.pressure.prefill(allowed_ms, self._fast_ms)
        out = self._policy(features(state, allowed_ms / self._fast_ms, self._model))
        margin = _MIDDLE + _WIDEST * math.tanh(float(out[0]))
        price = math.exp(min(max(float(out[1]) - 4.0, -12.0), 3.0))
        price += self.pressure.price(state.waiting)
        most_ms = margin * self._stretch * allowed_ms
        return self._model.clocks(self._cheapest(state, now, ms_S, most_ms, price))

    def seen(self, step: Step) -> None:
        """Correct the costs."""
        state = self._state
        if state is None:
            return
        if step.phase == "decode":
            self.pressure.decoded(step.tokens, step.duration_ms, step.tokens * self._fast_ms)
        self.costs.seen(
            step, prompt_tokens=state.prompt_tokens, done=state.tokens_done, load=state.load
        )

    def _cheapest(
        self, state: ControlState, now: int, ms_S: Vector, most_ms: float, price: float
    ) -> int:
        """The setting with the least energy plus price of time, in time and cool enough."""
        watts_S = self.costs.watts(state.phase)
        units = max(state.tokens_left, 1.0) if state.phase == "decode" else 1.0
        switch_ms = self._model.switch_ms
        whole_S = ms_S + switch_ms / units
        sure_S = ms_S + switch_ms / min(units, _SURE_TOKENS)
        whole_S[now] = sure_S[now] = ms_S[now]
        cost_S = whole_S * (watts_S + price * float(watts_S[self._fast]))
        if state.temperature_c > _HOT_SHARE * self._model.thermal.limit_c:
            hot_S = watts_S > self._cool_w(watts_S, state.temperature_c)
            cost_S[hot_S] = sure_S[hot_S] = math.inf
        late_S = sure_S > most_ms
        late_S[now] = sure_S[now] > most_ms * (1 + _HOLD)
        cost_S[late_S] = math.inf
        best = int(cost_S.argmin())
        if cost_S[best] == math.inf:
            return int(sure_S.argmin())
        if cost_S[now] <= cost_S[best] * (1 + _STAY):
            return now
        return best

    def _cool_w(self, watts_S: Vector, temperature_c: float) -> float:
        """What may be drawn: everything at the margin's start, the least at the limit."""
        limit_c = self._model.thermal.limit_c
        share = max(0.0, (limit_c - temperature_c) / (limit_c * (1 - _HOT_SHARE)))
        least = float(watts_S.min())
        return least + share * (float(watts_S.max()) - least)


def features(state: ControlState, room: float, model: BoardModel) -> Vector:
    """Where a request stands, as numbers near one (F,). `room` is allowed over fastest time."""
    limit_c = model.thermal.limit_c
    return np.array(
        [
            1.0 if state.phase == "prefill" else 0.0,
            math.log(min(max(room, 0.05), 20.0)),
            math.log1p(state.tokens_left) / 5.0,
            math.log1p(state.tokens_done) / 5.0,
            min(state.waiting, 4) / 4.0,
            state.load,
            (limit_c - state.temperature_c) / limit_c,
            1.0 if state.battery is None else state.battery,
            model.switch_ms / 20.0,
        ]
    )
