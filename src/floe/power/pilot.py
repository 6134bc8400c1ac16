"""Requests under way to states, states to clocks: what the listener's thread does.

Several requests share the engine: the clocks are chosen for the one with the least room, within
the least of their budgets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from floe.core.errors import FloeError
from floe.core.request import DvfsMode
from floe.power.base import (
    Clocks,
    Controller,
    ControlState,
    Goals,
    Knobs,
    Label,
    Phase,
    Step,
    Window,
)
from floe.power.boards.model import BoardModel
from floe.power.books import Spent
from floe.power.controllers.learned import Learned
from floe.power.controllers.online import OnlineCosts
from floe.power.length import LengthPredictor

_READ_SHARE = 0.5
FAR_MS = 1e9
"""A goal that is none."""
_OWN_TTFT, _OWN_TPOT = 2.0, 1.5
"""Goals of a request without any, in multiples of what the board does at its fastest."""


SHARED_TOKENS = 8.0
"""Slack is spread over no fewer tokens: the guess of what is left may be low."""


@dataclass(kw_only=True, eq=False)
class Active:
    """A request under way. Goals None = none were given; times on the monotonic clock."""

    prompt_tokens: int
    max_tokens: int
    ttft_ms: float | None
    tpot_ms: float | None
    budget_w: float | None
    mode: DvfsMode
    came_s: float
    adapters: int
    cloud: bool
    predictor: LengthPredictor | None = None
    first_s: float | None = None
    last_s: float = 0.0
    drawn: int = 0
    spent: Spent = field(default_factory=Spent)

    @property
    def phase(self) -> Phase:
        """Until the first token is there, the prompt is being read."""
        return "prefill" if self.first_s is None else "decode"

    def mean_ms(self) -> float | None:
        """What each token after the first took; None with fewer than two."""
        if self.first_s is None or self.drawn < 2:
            return None
        return 1000 * (self.last_s - self.first_s) / (self.drawn - 1)


class Pilot:
    """Chooses clocks by `controllers` (one for each mode) and sets them on `knobs`.

    `fault` says why clocks are not set any more, if so: decisions go on as advice. `switch_label`
    says whether the model's cost of a change was measured here.
    """

    def __init__(
        self,
        *,
        model: BoardModel,
        controllers: Mapping[DvfsMode, Controller],
        knobs: Knobs,
        clock_s: Callable[[], float] = time.monotonic,
        switch_label: Label = "modelled",
    ) -> None:
        self._model, self._controllers, self._knobs = model, controllers, knobs
        self._clock_s = clock_s
        self._domains = {d.name: d for d in knobs.domains}
        self._now: Clocks = {}
        self._deciding: Controller | None = None
        self._state: ControlState | None = None
        self._pressed: Active | None = None
        self._drawn_before = 0
        self.advised: dict[str, float] = {}
        self.decisions = self.switches = 0
        self.decision_s = 0.0
        self.fault = knobs.advice_only
        self.switch_ms, self.switch_label = model.switch_ms, switch_label

    def decide(
        self,
        active: list[Active],
        *,
        temperature_c: float | None,
        battery: float | None,
        mean_tokens: float,
    ) -> None:
        """Clocks for what comes next; with nothing under way those of waiting."""
        began_s = time.perf_counter()
        states = [
            (one, self._state_of(one, len(active) - 1, temperature_c, battery, mean_tokens))
            for one in active
        ]
        if states:
            pressed, state = min(states, key=lambda pair: self._room(*pair))
        else:
            pressed, state = None, self._idle(temperature_c, battery)
        controller = self._controllers[pressed.mode if pressed else "balanced"]
        if pressed is not None and pressed is not self._pressed:
            goals = self._goals(pressed)
            controller.begin(goals)
        clocks: Clocks = controller.decide(state)
        budget_w = min((one.budget_w for one in active if one.budget_w), default=None)
        if pressed is not None and budget_w is not None:
            clocks = self._within(clocks, state, budget_w, pressed.mode)
        self._deciding, self._state, self._pressed = controller, state, pressed
        self._drawn_before = pressed.drawn if pressed else 0
        self.decisions += 1
        self.decision_s = time.perf_counter() - began_s
        self._apply(clocks)

    def learn(self, *, phase: Phase, fed: int, busy_ms: float, window: Window) -> None:
        """What the turns of `phase` since the last decision took together."""
        state, pressed = self._state, self._pressed
        if self._deciding is None or state is None or pressed is None or phase != state.phase:
            return
        tokens = pressed.drawn - self._drawn_before if phase == "decode" else state.prompt_tokens
        if tokens <= 0 or fed <= 0 or busy_ms <= 0:
            return
        if phase == "prefill" and fed < _READ_SHARE * state.prompt_tokens:
            return  # a turn over a cached prompt's last tokens says nothing of a whole prompt
        scale = max(1.0, state.prompt_tokens / fed) if phase == "prefill" else 1.0
        energy_j = None
        if window.energy_j is not None and window.duration_s > 0:
            energy_j = window.energy_j * scale * busy_ms / 1000 / window.duration_s
        self._deciding.seen(
            Step(
                phase=phase, tokens=tokens, duration_ms=busy_ms * scale,
                clocks=self._clocks(), energy_j=energy_j, label=window.label,
            )
        )  # fmt: skip

    def _apply(self, clocks: Clocks) -> None:
        """Set what the knobs have of the clocks; the first refusal ends setting."""
        self.advised = dict(clocks)
        wanted = {
            n: self._domains[n].nearest(mhz) for n, mhz in clocks.items() if n in self._domains
        }
        if self.fault or not wanted or wanted == self._now:
            return
        try:
            self._knobs.apply(wanted)
        except FloeError as error:
            self.fault = error.message
            return
        self._now = wanted
        self.switches += 1

    def _clocks(self) -> Clocks:
        """As they are, for learning: what was set, else what is read, else the fastest."""
        return self._now or self._knobs.read() or self._model.clocks(self._model.fastest)

    def _state_of(
        self, one: Active, waiting: int, temperature_c: float | None, battery: float | None,
        mean_tokens: float,
    ) -> ControlState:  # fmt: skip
        goals, now_s = self._goals(one), self._clock_s()
        left = self._left(one, mean_tokens)
        spent_ms = 1000 * (now_s - one.first_s) if one.first_s is not None else 0.0
        shared = max(left, SHARED_TOKENS)
        allowed_ms = (goals.tpot_ms * (max(one.drawn - 1, 0) + shared) - spent_ms) / shared
        return ControlState(
            phase=one.phase,
            prompt_tokens=one.prompt_tokens,
            tokens_done=one.drawn,
            tokens_left=left,
            ttft_left_ms=goals.ttft_ms - 1000 * (now_s - one.came_s),
            tpot_allowed_ms=allowed_ms,
            clocks=self._clocks(),
            temperature_c=self._degrees(temperature_c),
            battery=battery,
            waiting=waiting,
        )

    def _idle(self, temperature_c: float | None, battery: float | None) -> ControlState:
        return ControlState(
            phase="idle", prompt_tokens=0, tokens_done=0, tokens_left=0.0, ttft_left_ms=0.0,
            tpot_allowed_ms=0.0, clocks=self._clocks(),
            temperature_c=self._degrees(temperature_c), battery=battery,
        )  # fmt: skip

    def _degrees(self, temperature_c: float | None) -> float:
        return self._model.thermal.ambient_c if temperature_c is None else temperature_c

    def _left(self, one: Active, mean_tokens: float) -> float:
        most = max(one.max_tokens - one.drawn, 1)
        if one.predictor is not None:
            return one.predictor.left(most=most)
        return float(min(max(mean_tokens - one.drawn, 1.0), most)) if mean_tokens else float(most)

    def _goals(self, one: Active) -> Goals:
        """Its goals; without any, multiples of the fastest, or none at all for a saver."""
        ttft_ms, tpot_ms = one.ttft_ms, one.tpot_ms
        saves = one.mode == "saver"
        if ttft_ms is None:
            fast_ms = self._fastest_ms("prefill", one)
            ttft_ms = FAR_MS if saves else _OWN_TTFT * fast_ms
        if tpot_ms is None:
            tpot_ms = FAR_MS if saves else _OWN_TPOT * self._fastest_ms("decode", one)
        return Goals(ttft_ms=ttft_ms, tpot_ms=tpot_ms)

    def _fastest_ms(self, phase: Phase, one: Active) -> float:
        costs, fast = self._costs(one.mode), self._model.fastest
        if costs is not None:
            return float(costs.ms(phase, prompt_tokens=one.prompt_tokens, done=one.drawn)[fast])
        if phase == "prefill":
            return float(self._model.prefill_ms(one.prompt_tokens)[fast])
        return float(self._model.decode_ms(one.prompt_tokens + one.drawn)[fast])

    def _room(self, one: Active, state: ControlState) -> float:
        allowed_ms = state.ttft_left_ms if one.phase == "prefill" else state.tpot_allowed_ms
        return allowed_ms / max(self._fastest_ms(one.phase, one), 1e-9)

    def _costs(self, mode: DvfsMode) -> OnlineCosts | None:
        controller = self._controllers[mode]
        return controller.costs if isinstance(controller, Learned) else None

    def _within(
        self, clocks: Clocks, state: ControlState, budget_w: float, mode: DvfsMode
    ) -> Clocks:
        """`clocks`, or the fastest that draw no more than the budget; the least if none do."""
        costs = self._costs(mode)
        prefills = state.phase == "prefill"
        watts_S = self._model.prefill_w_S if prefills else self._model.decode_w_S
        if costs is not None:
            watts_S = costs.watts(state.phase)
        at = self._model.index_of(clocks)
        if watts_S[at] <= budget_w:
            return clocks
        allowed_S = watts_S <= budget_w
        if not allowed_S.any():
            return self._model.clocks(int(np.argmin(watts_S)))
        context = state.prompt_tokens + state.tokens_done
        ms_S = (
            self._model.prefill_ms(state.prompt_tokens)
            if prefills
            else self._model.decode_ms(context)
        )
        return self._model.clocks(int(np.argmin(np.where(allowed_S, ms_S, np.inf))))
