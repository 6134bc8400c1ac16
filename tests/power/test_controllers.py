"""Every controller under the same checks, and what each rule is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from floe.core.errors import BadConfig
from floe.power.base import Controller, Goals
from floe.power.boards.catalogue import BOARDS, fitted
from floe.power.boards.model import BoardModel
from floe.power.controllers.dqn import Dqn
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.policy import blank, shipped
from floe.power.controllers.pressure import Pressure
from floe.power.controllers.rules import RULES, Fixed, fixed_best, in_time, rule
from floe.power.optimum import optimum
from floe.power.simulate import Run, Served, simulate
from floe.power.workload import Job, workload
from floe.testing import controller_conformance as conformance

MAKERS: dict[str, Callable[[BoardModel], Controller]] = {
    **{name: (lambda model, name=name: rule(name, model)) for name in RULES},
    "fixed-best": lambda model: Fixed(model, setting=1),
    "learned": lambda model: Learned(model, shipped_policy()),
    "saver": lambda model: Learned(model, shipped_policy(), mode="saver"),
    "quick": lambda model: Learned(model, shipped_policy(), mode="performance"),
    "dqn": lambda model: Dqn(model, blank(N_FEATURES, 4, model.n_settings)),
}


@cache
def shipped_policy():
    return shipped("policy", features=N_FEATURES, outputs=N_OUTPUTS)


@pytest.mark.parametrize("board", ["orin-nano-super", "odroid-xu3", "v100"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_controller_keeps_the_contract(name: str, board: str) -> None:
    model = fitted(board).model
    for check in conformance.CHECKS:
        check(lambda: MAKERS[name](model), model)


@pytest.mark.parametrize("board", BOARDS)
def test_the_learned_one_does_not_ripple_and_keeps_the_thermal_margin(board: str) -> None:
    model = fitted(board).model
    conformance.check_no_ripple(lambda: MAKERS["learned"](model), model)
    conformance.check_thermal_margin(lambda: MAKERS["learned"](model), model)


@pytest.mark.parametrize("name", ["performance", "powersave", "race-to-idle", "schedutil"])
def test_governors_do_not_ripple(name: str) -> None:
    model = fitted("odroid-xu3").model
    conformance.check_no_ripple(lambda: MAKERS[name](model), model)


def test_a_board_too_hot_for_its_goals_stays_below_its_limit() -> None:
    cool = fitted("odroid-xu3").model
    hot = replace(cool, thermal=replace(cool.thermal, ambient_c=50.0))
    jobs = [_job(hot, tpot=1.0) for _ in range(12)]
    free = simulate(hot, rule("performance", hot), jobs, keep_timeline=True)
    own = simulate(hot, MAKERS["learned"](hot), jobs, keep_timeline=True)
    assert free.throttled > 0 and own.throttled == 0
    assert max(m.temperature_c for m in own.timeline) < hot.thermal.limit_c


def _job(model: BoardModel, *, tpot: float, prompt: int = 64, output: int = 120) -> Job:
    fast = model.fastest
    return Job(
        pause_s=0.5, arrival_s=None, prompt_tokens=prompt, output_tokens=output, service="x",
        goals=Goals(
            ttft_ms=2.0 * float(model.prefill_ms(prompt)[fast]),
            tpot_ms=tpot * float(model.decode_ms(prompt)[fast]),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("board", ["orin-nano-super", "odroid-xu3", "v100", "a40", "orin-nx"])
def test_the_learned_one_is_near_the_optimum_in_a_conversation(board: str) -> None:
    model = fitted(board).model
    jobs = workload(model, n=60, part="train", seed=41)
    base = simulate(model, rule("performance", model), jobs)
    own = simulate(model, MAKERS["learned"](model), jobs)
    bound = optimum(model, jobs).energy_j
    assert bound <= own.energy_j * (1 + 1e-9)
    assert (own.energy_j - bound) / base.energy_j < 0.03
    assert own.violation_ttft == own.violation_tpot == 0.0


def test_the_lowest_that_meets_the_goal_is_the_lowest_of_all_that_do() -> None:
    model = fitted("odroid-xu3").model
    for state in conformance.states(model):
        if state.phase != "decode":
            continue
        ms_S = model.decode_ms(state.prompt_tokens + state.tokens_done)
        ms_S = ms_S / (1 - min(state.load, 0.95))
        meeting = [s for s in range(model.n_settings) if ms_S[s] <= 0.97 * state.tpot_allowed_ms]
        wanted = min(meeting, default=model.n_settings - 1)
        assert rule("lowest-meeting", model).decide(state) == model.clocks(wanted)


def test_feedback_steps_down_while_early_and_up_when_late() -> None:
    model = fitted("odroid-xu3").model
    early = simulate(model, rule("feedback", model), [_job(model, tpot=4.0)], keep_timeline=True)
    chosen = [m.setting for m in early.timeline if m.phase == "decode"]
    assert chosen[0] == model.fastest and chosen[-1] == 0 and chosen == sorted(chosen)[::-1]
    late = simulate(model, rule("feedback", model), [_job(model, tpot=1.0)], keep_timeline=True)
    assert late.timeline[-1].setting == model.fastest


def test_fixed_best_is_the_best_by_trying_all() -> None:
    model = fitted("v100").model
    jobs = workload(model, n=30, part="train", seed=5)
    base = simulate(model, rule("performance", model), jobs)
    runs = [simulate(model, Fixed(model, setting=s), jobs) for s in range(model.n_settings)]
    wanted = min(r.energy_j for r in runs if in_time(r, base))
    assert simulate(model, fixed_best(model, jobs), jobs).energy_j == wanted


def test_in_time_allows_two_percent_and_a_point_over_the_base() -> None:
    def run(missed: int) -> Run:
        served = tuple(
            Served(ttft_ms=1, tpot_ms=1, energy_j=1, late_first=k < missed, late_tokens=False)
            for k in range(200)
        )
        return Run(served=served, energy_j=1, idle_j=0, switches=0, throttled=0)

    assert in_time(run(2), run(0)) and not in_time(run(3), run(0))
    assert in_time(run(4), run(2)) and not in_time(run(5), run(9))


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(BadConfig, match="no controller 'fast'; known: performance, powersave"):
        rule("fast", fitted("v100").model)


def test_pressure_rises_with_misses_and_falls_without() -> None:
    model = fitted("odroid-xu3").model
    pressure, goals = Pressure(model), Goals(ttft_ms=100.0, tpot_ms=10.0)
    prices = []
    for _ in range(8):  # tokens that full speed would have had in time
        pressure.begin(goals)
        pressure.decoded(10, 120.0, 80.0)
        prices.append(pressure.price(0))
    assert prices[0] == 0 and prices == sorted(prices) and pressure.level == 1.0
    watts_S, ms_S = model.decode_w_S, model.decode_ms(0)
    cost_S = ms_S * (watts_S + prices[-1] * watts_S[model.fastest])
    assert int(np.argmin(cost_S)) == model.fastest
    for _ in range(600):
        pressure.begin(goals)
        pressure.decoded(10, 80.0, 70.0)
    assert pressure.level == 0.0 and pressure.price(0) == 0.0


def test_pressure_ignores_what_full_speed_misses_too() -> None:
    pressure = Pressure(fitted("odroid-xu3").model)
    for _ in range(5):
        pressure.begin(Goals(ttft_ms=100.0, tpot_ms=10.0))
        pressure.decoded(10, 150.0, 110.0)
        pressure.prefill(90.0, 120.0)
    assert pressure.level == 0.0


def test_pressure_hastens_who_waited_and_who_is_waited_for() -> None:
    pressure = Pressure(fitted("odroid-xu3").model)
    pressure.begin(Goals(ttft_ms=100.0, tpot_ms=10.0))
    pressure.prefill(100.0, 50.0)
    assert pressure.price(0) == 0 < pressure.price(1)
    pressure.prefill(75.0, 50.0)  # half its slack is gone
    assert 0 < pressure.price(0) < pressure.price(1)
    pressure.begin(Goals(ttft_ms=100.0, tpot_ms=10.0))
    assert pressure.level == 0.0 == pressure.price(0)


def test_in_a_queue_the_learned_one_misses_less_than_the_lowest_that_meets() -> None:
    model = fitted("odroid-xu3").model
    jobs = workload(model, n=250, part="train", seed=72, queue=True, utilisation=0.1)
    own = simulate(model, MAKERS["learned"](model), jobs)
    low = simulate(model, rule("lowest-meeting", model), jobs)
    assert own.violation_ttft <= 0.02 < low.violation_ttft
    assert own.energy_j < simulate(model, rule("schedutil", model), jobs).energy_j
