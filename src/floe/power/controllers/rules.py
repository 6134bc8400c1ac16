"""Controllers that learn nothing: governors, fixed clocks, feedback, and a speed model.

Legend: S settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from floe.core.errors import BadConfig
from floe.power.base import Controller, ControlState, Goals, Step
from floe.power.boards.model import BoardModel
from floe.power.simulate import Load, Run, no_load, simulate
from floe.power.workload import Job

_RISE, _FALL = 0.95, 0.80  # of the goal: where the feedback steps up and down
_MARGIN = 0.97  # a speed model plans a little faster than the goal
MOST_MISSED, _EXCESS = 0.02, 0.01  # shares of requests
_SCHEDUTIL = 1.25  # the kernel's headroom: next = 1.25 * highest * utilisation


class _Rule:
    """A controller that only needs the board's tables."""

    name = ""

    def __init__(self, model: BoardModel) -> None:
        self._model = model
        self._slowest = model.thriftiest

    def begin(self, goals: Goals) -> None:
        """Nothing depends on the goals."""

    def seen(self, step: Step) -> None:
        """Nothing is learned."""


class Performance(_Rule):
    """The highest clocks, always."""

    name = "performance"

    def decide(self, state: ControlState) -> dict[str, float]:
        """The fastest setting."""
        del state
        return self._model.clocks(self._model.fastest)


class Powersave(_Rule):
    """The lowest clocks, always."""

    name = "powersave"

    def decide(self, state: ControlState) -> dict[str, float]:
        """The setting that draws least."""
        del state
        return self._model.clocks(int(np.argmin(self._model.decode_w_S)))


class RaceToIdle(_Rule):
    """The highest clocks while there is work, the lowest while there is none."""

    name = "race-to-idle"

    def decide(self, state: ControlState) -> dict[str, float]:
        """By phase alone."""
        at = self._slowest if state.phase == "idle" else self._model.fastest
        return self._model.clocks(at)


class Schedutil(_Rule):
    """Like the kernel's governors: clocks follow how busy the device was, not the goals.

    While a step runs the device is fully used, so the clocks rise to the top within a few steps;
    they sink while it waits.
    """

    name = "schedutil"

    def __init__(self, model: BoardModel) -> None:
        super().__init__(model)
        self._used = 0.0

    def decide(self, state: ControlState) -> dict[str, float]:
        """Each domain at 1.25 times its highest clock times the utilisation."""
        self._used = 0.5 * self._used + 0.5 * (state.phase != "idle")
        share = min(1.0, _SCHEDUTIL * self._used)
        return {d.name: d.nearest(share * d.steps_mhz[-1]) for d in self._model.board.domains}


class Fixed(_Rule):
    """One setting, always; `fixed_best` finds it on training jobs."""

    name = "fixed-best"

    def __init__(self, model: BoardModel, *, setting: int) -> None:
        super().__init__(model)
        self._setting = setting

    def decide(self, state: ControlState) -> dict[str, float]:
        """The setting."""
        del state
        return self._model.clocks(self._setting)


class Feedback(_Rule):
    """GreenLLM-like (arXiv 2508.16449): prefill from a model, decode by a loop with hysteresis.

    Decode steps one setting down the speed order while tokens come well within the goal, one up
    when they get close to it. Settings that cost more than a faster one are not in the order.
    """

    name = "feedback"

    def __init__(self, model: BoardModel) -> None:
        super().__init__(model)
        self._order = _frontier(model)
        self._at = len(self._order) - 1
        self._token_ms = 0.0

    def begin(self, goals: Goals) -> None:
        """The clocks of the last request are where this one starts."""
        super().begin(goals)
        self._token_ms = 0.0

    def decide(self, state: ControlState) -> dict[str, float]:
        """The next setting of the order."""
        if state.phase == "idle":
            return self._model.clocks(self._slowest)
        if state.phase == "prefill":
            return self._model.clocks(_cheapest(self._model, state, _MARGIN))
        if self._token_ms > 0:
            used = self._token_ms / max(state.tpot_allowed_ms, 1e-9)
            if used > _RISE:
                self._at = min(self._at + 1, len(self._order) - 1)
            elif used < _FALL:
                self._at = max(self._at - 1, 0)
        return self._model.clocks(self._order[self._at])

    def seen(self, step: Step) -> None:
        """What a token took."""
        if step.phase == "decode":
            self._token_ms = step.duration_ms / step.tokens


class LowestMeeting(_Rule):
    """ThrottLL'eM-like (arXiv 2408.05235): the lowest clocks that a speed model says meet the goal.

    Lowest means the lowest sum of clocks in shares of the highest: it knows speed, not energy.
    """

    name = "lowest-meeting"

    def __init__(self, model: BoardModel) -> None:
        super().__init__(model)
        self._height_S = (model.settings_SD / model.settings_SD.max(axis=0)).sum(axis=1)

    def decide(self, state: ControlState) -> dict[str, float]:
        """The lowest setting whose predicted time fits."""
        if state.phase == "idle":
            return self._model.clocks(self._slowest)
        ms_S, allowed_ms = _times(self._model, state)
        fits_S = ms_S <= _MARGIN * allowed_ms
        if not fits_S.any():
            return self._model.clocks(int(np.argmin(ms_S)))
        return self._model.clocks(int(np.argmin(np.where(fits_S, self._height_S, np.inf))))


def rule(name: str, model: BoardModel) -> Controller:
    """The rule of that name, for this board.

    Raises:
        BadConfig: no such rule.
    """
    if name not in RULES:
        raise BadConfig(
            f"no controller {name!r}; known: {', '.join(RULES)}", param="power.controller"
        )
    return RULES[name](model)


def fixed_best(model: BoardModel, jobs: Sequence[Job], *, load: Load = no_load) -> Fixed:
    """The one setting that serves training jobs with the least energy and still in time.

    In time: at most 2 % of either goal missed, and at most one point more than at full speed. Full
    speed itself where no setting is.
    """
    base = simulate(model, Fixed(model, setting=model.fastest), jobs, load=load)
    best, least_j = model.fastest, math.inf
    for setting in range(model.n_settings):
        run = simulate(model, Fixed(model, setting=setting), jobs, load=load)
        if run.energy_j < least_j and in_time(run, base):
            best, least_j = setting, run.energy_j
    return Fixed(model, setting=best)


def in_time(run: Run, base: Run) -> bool:
    """Whether a run meets the goals: 2 % may be missed, and a point more than `base` misses."""
    pairs = (
        (run.violation_ttft, base.violation_ttft),
        (run.violation_tpot, base.violation_tpot),
    )
    return all(own <= min(MOST_MISSED, full + _EXCESS) + 1e-9 for own, full in pairs)


RULES: Mapping[str, Callable[[BoardModel], Controller]] = {
    one.name: one
    for one in (Performance, Powersave, Schedutil, RaceToIdle, Feedback, LowestMeeting)
}


def _times(model: BoardModel, state: ControlState) -> tuple[np.ndarray, float]:
    """Milliseconds of the next step's unit at every setting (S,), and what is allowed for it."""
    slowed = 1.0 - min(state.load, 0.95)
    if state.phase == "prefill":
        return model.prefill_ms(state.prompt_tokens) / slowed, state.ttft_left_ms
    context = state.prompt_tokens + state.tokens_done
    return model.decode_ms(context) / slowed, state.tpot_allowed_ms


def _cheapest(model: BoardModel, state: ControlState, margin: float) -> int:
    """The setting with the least energy among those that fit; the fastest when none does."""
    ms_S, allowed_ms = _times(model, state)
    power_S = model.prefill_w_S if state.phase == "prefill" else model.decode_w_S
    fits_S = ms_S <= margin * allowed_ms
    if not fits_S.any():
        return int(np.argmin(ms_S))
    return int(np.argmin(np.where(fits_S, ms_S * power_S, np.inf)))


def _frontier(model: BoardModel) -> list[int]:
    """Settings from slow to fast that no other beats in both time and power while decoding."""
    order = sorted(range(model.n_settings), key=lambda s: float(model.decode_ms(0)[s]))
    kept: list[int] = []
    for s in order:
        if not kept or model.decode_w_S[s] < model.decode_w_S[kept[-1]]:
            kept.append(s)
    return kept[::-1]
