"""A board, a controller and a queue of jobs, step by step. Every joule here is modelled."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from floe.power.base import Clocks, Controller, ControlState, Phase, Step
from floe.power.boards.model import BoardModel, Vector
from floe.power.workload import Job

BLOCK_TOKENS = 8
"""Tokens between two decisions."""

Load = Callable[[float], float]
"""What other programs take at a time in seconds, 0 to 1."""
Guess = Callable[[Job, int], float]
"""Tokens left, as predicted after some are done."""


def no_load(_at_s: float) -> float:
    """Nobody else runs."""
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """One job's outcome: milliseconds, joules while it ran, and which goals were missed."""

    ttft_ms: float
    tpot_ms: float
    energy_j: float
    late_first: bool
    late_tokens: bool


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One step in the timeline of a report."""

    at_s: float
    phase: Phase
    setting: int
    power_w: float
    temperature_c: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A whole simulation. `energy_j` is what serving took, `idle_j` what waiting took."""

    served: tuple[Served, ...]
    energy_j: float
    idle_j: float
    switches: int
    throttled: int
    timeline: tuple[Moment, ...] = field(repr=False, default=())

    @property
    def violation_ttft(self) -> float:
        """Share of jobs whose first token was late."""
        return float(np.mean([s.late_first for s in self.served]))

    @property
    def violation_tpot(self) -> float:
        """Share of jobs whose tokens were late on average."""
        return float(np.mean([s.late_tokens for s in self.served]))


def simulate(
    model: BoardModel,
    controller: Controller,
    jobs: Sequence[Job],
    *,
    load: Load = no_load,
    guess: Guess | None = None,
    battery: float | None = None,
    keep_timeline: bool = False,
) -> Run:
    """The jobs served on the board with clocks by the controller."""
    world = Simulation(
        model, seen=controller.seen, load=load, guess=guess, battery=battery,
        keep_timeline=keep_timeline,
    )  # fmt: skip
    play = world.play(jobs)
    served = -1
    state = next(play, None)
    while state is not None:
        if world.n_served != served and state.phase != "idle":
            served = world.n_served
            controller.begin(jobs[served].goals)
        try:
            state = play.send(controller.decide(state))
        except StopIteration:
            break
    return world.result()


class Simulation:
    """Serves jobs one after another in the order they came.

    `seen` hears of every step as it is done.
    """

    def __init__(
        self,
        model: BoardModel,
        *,
        seen: Callable[[Step], None] = lambda _step: None,
        load: Load = no_load,
        guess: Guess | None = None,
        battery: float | None = None,
        keep_timeline: bool = False,
    ) -> None:
        self._model, self._seen = model, seen
        self._load, self._guess = load, guess or (lambda job, done: job.output_tokens - done)
        self._battery, self._keep = battery, keep_timeline
        self._now_s, self._setting = 0.0, model.fastest
        self._temperature_c = model.thermal.ambient_c
        self._energy_j = self._idle_j = 0.0
        self._switches = self._throttled = 0
        self._timeline: list[Moment] = []
        self._served: list[Served] = []

    def play(self, jobs: Sequence[Job]) -> Generator[ControlState, Clocks, None]:
        """Serve them all: yields each state in which clocks are chosen, and is sent the clocks."""
        for n, job in enumerate(jobs):
            came_s = self._now_s + job.pause_s if job.arrival_s is None else job.arrival_s
            yield from self._idle_until(came_s)
            later = [j.arrival_s for j in jobs[n + 1 : n + 9] if j.arrival_s is not None]
            yield from self._serve(job, came_s, later)

    @property
    def n_served(self) -> int:
        """Jobs that are done."""
        return len(self._served)

    def result(self) -> Run:
        """What was served so far."""
        return Run(
            served=tuple(self._served),
            energy_j=self._energy_j,
            idle_j=self._idle_j,
            switches=self._switches,
            throttled=self._throttled,
            timeline=tuple(self._timeline),
        )

    def _serve(
        self, job: Job, came_s: float, later_s: Sequence[float]
    ) -> Generator[ControlState, Clocks, None]:
        goals, before_j = job.goals, self._energy_j
        due_s = came_s + goals.ttft_ms / 1000
        state = self._state(job, "prefill", 0, due_s, goals.tpot_ms, later_s)
        yield from self._step(
            "prefill", job.prompt_tokens, self._model.prefill_ms(job.prompt_tokens), state
        )
        first_s = self._now_s
        done = 1
        while done < job.output_tokens:
            left = job.output_tokens - done
            guessed = max(1.0, self._guess(job, done))
            spent_ms = 1000 * (self._now_s - first_s)
            shared = max(guessed, float(BLOCK_TOKENS))  # slack must not go in part of a block
            allowed_ms = (goals.tpot_ms * (done - 1 + shared) - spent_ms) / shared
            tokens = min(BLOCK_TOKENS, left)
            state = self._state(job, "decode", done, due_s, allowed_ms, later_s)
            block_ms = tokens * self._model.decode_ms(job.prompt_tokens + done)
            yield from self._step("decode", tokens, block_ms, state)
            done += tokens
        ttft_ms = 1000 * (first_s - came_s)
        tpot_ms = 1000 * (self._now_s - first_s) / max(job.output_tokens - 1, 1)
        self._served.append(
            Served(
                ttft_ms=ttft_ms,
                tpot_ms=tpot_ms,
                energy_j=self._energy_j - before_j,
                late_first=ttft_ms > goals.ttft_ms * (1 + 1e-9),
                late_tokens=tpot_ms > goals.tpot_ms * (1 + 1e-9),
            )
        )

    def _state(
        self, job: Job, phase: Phase, done: int, due_s: float, allowed_ms: float,
        later_s: Sequence[float],
    ) -> ControlState:  # fmt: skip
        return ControlState(
            phase=phase,
            prompt_tokens=job.prompt_tokens,
            tokens_done=done,
            tokens_left=max(1.0, self._guess(job, done)),
            ttft_left_ms=1000 * (due_s - self._now_s),
            tpot_allowed_ms=allowed_ms,
            clocks=self._model.clocks(self._setting),
            temperature_c=self._temperature_c,
            load=self._load(self._now_s),
            battery=self._battery,
            waiting=sum(at <= self._now_s for at in later_s),
        )

    def _step(
        self, phase: Phase, tokens: int, ms_S: Vector, state: ControlState
    ) -> Generator[ControlState, Clocks, None]:
        switch_ms = self._choose((yield state))
        power_S = self._model.prefill_w_S if phase == "prefill" else self._model.decode_w_S
        busy_ms = float(ms_S[self._setting]) / (1.0 - min(state.load, 0.95)) + switch_ms
        power_w = float(power_S[self._setting])
        spent_j = power_w * busy_ms / 1000
        self._energy_j += spent_j
        self._pass(phase, busy_ms / 1000, power_w)
        self._seen(
            Step(
                phase=phase,
                tokens=tokens,
                duration_ms=busy_ms - switch_ms,
                clocks=self._model.clocks(self._setting),
                energy_j=power_w * (busy_ms - switch_ms) / 1000,
                label="modelled",
                temperature_c=self._temperature_c,
            )
        )

    def _choose(self, clocks: Clocks) -> float:
        """Set the clocks; the milliseconds that a change costs."""
        wanted = self._model.index_of(clocks)
        if self._temperature_c > self._model.thermal.limit_c:
            self._throttled += 1
            wanted = int(np.argmin(self._model.decode_w_S))  # the firmware's own brake
        changed = wanted != self._setting
        self._setting = wanted
        self._switches += changed
        return self._model.switch_ms if changed else 0.0

    def _idle_until(self, at_s: float) -> Generator[ControlState, Clocks, None]:
        if at_s <= self._now_s:
            return
        state = ControlState(
            phase="idle", prompt_tokens=0, tokens_done=0, tokens_left=0.0, ttft_left_ms=0.0,
            tpot_allowed_ms=0.0, clocks=self._model.clocks(self._setting),
            temperature_c=self._temperature_c, load=self._load(self._now_s), battery=self._battery,
        )  # fmt: skip
        self._choose((yield state))
        power_w = float(self._model.idle_w_S[self._setting])
        self._idle_j += power_w * (at_s - self._now_s)
        self._pass("idle", at_s - self._now_s, power_w)

    def _pass(self, phase: Phase, seconds: float, power_w: float) -> None:
        self._temperature_c = self._model.thermal.after(self._temperature_c, power_w, seconds)
        if self._keep:
            self._timeline.append(
                Moment(
                    at_s=self._now_s, phase=phase, setting=self._setting, power_w=power_w,
                    temperature_c=self._temperature_c, seconds=seconds,
                )
            )  # fmt: skip
        self._now_s += seconds
