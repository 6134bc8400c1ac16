"""Costs that are learned: what carries over, what is told apart, and a board not seen before."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.power.base import Phase, Step
from floe.power.boards.catalogue import fitted
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.online import OnlineCosts
from floe.power.controllers.policy import blank
from floe.power.controllers.rules import rule
from floe.power.optimum import optimum
from floe.power.simulate import simulate
from floe.power.workload import workload

MODEL = fitted("odroid-xu3").model


def step(
    at: int, *, ms: float, joules: float | None, phase: Phase = "decode", tokens: int = 8
) -> Step:
    return Step(
        phase=phase, tokens=tokens, duration_ms=ms, clocks=MODEL.clocks(at), energy_j=joules
    )


def test_it_starts_as_the_table() -> None:
    costs = OnlineCosts(MODEL)
    assert costs.ms("decode", prompt_tokens=60, done=4).tolist() == MODEL.decode_ms(64).tolist()
    assert costs.ms("prefill", prompt_tokens=60, done=0).tolist() == MODEL.prefill_ms(60).tolist()
    assert costs.watts("prefill").tolist() == MODEL.prefill_w_S.tolist()
    loaded = costs.ms("decode", prompt_tokens=60, done=4, load=0.5)
    assert loaded.tolist() == pytest.approx((2 * MODEL.decode_ms(64)).tolist())
    assert costs.ms("decode", prompt_tokens=60, done=4).tolist() == MODEL.decode_ms(64).tolist()


@given(st.floats(0.4, 2.5), st.floats(0.4, 2.5), st.integers(0, 4))
def test_it_comes_to_what_is_seen_and_carries_most_of_it_over(
    slower: float, hungrier: float, at: int
) -> None:
    costs = OnlineCosts(MODEL)
    ms = slower * 8 * float(MODEL.decode_ms(64)[at])
    joules = hungrier * float(MODEL.decode_w_S[at]) * ms / 1000
    for _ in range(60):
        costs.seen(step(at, ms=ms, joules=joules), prompt_tokens=60, done=4, load=0.0)
    found = costs.ms("decode", prompt_tokens=60, done=4) / MODEL.decode_ms(64)
    drawn = costs.watts("decode") / MODEL.decode_w_S
    assert found[at] == pytest.approx(slower, rel=0.01)
    assert drawn[at] == pytest.approx(hungrier, rel=0.01)
    other = (at + 1) % MODEL.n_settings
    assert abs(math.log(found[other])) <= abs(math.log(slower)) + 1e-6
    assert math.log(found[other]) * math.log(slower) >= 0
    untouched = costs.ms("prefill", prompt_tokens=60, done=0)
    assert untouched.tolist() == MODEL.prefill_ms(60).tolist()


def test_a_step_beside_another_program_teaches_nothing_wrong() -> None:
    costs = OnlineCosts(MODEL)
    twice = 2 * 8 * float(MODEL.decode_ms(64)[1])
    costs.seen(step(1, ms=twice, joules=None), prompt_tokens=60, done=4, load=0.5)
    found = costs.ms("decode", prompt_tokens=60, done=4)
    assert found.tolist() == pytest.approx(MODEL.decode_ms(64).tolist())


def test_unknown_energy_teaches_time_only_and_idle_nothing() -> None:
    costs = OnlineCosts(MODEL)
    costs.seen(step(2, ms=5000.0, joules=None), prompt_tokens=60, done=4, load=0.0)
    assert costs.watts("decode").tolist() == MODEL.decode_w_S.tolist()
    before = costs.ms("decode", prompt_tokens=60, done=4).tolist()
    assert before != MODEL.decode_ms(64).tolist()
    costs.seen(step(2, ms=5.0, joules=1.0, phase="idle"), prompt_tokens=60, done=4, load=0.0)
    costs.seen(step(2, ms=0.0, joules=1.0), prompt_tokens=60, done=4, load=0.0)
    assert costs.ms("decode", prompt_tokens=60, done=4).tolist() == before


def test_a_broken_clock_stays_within_bounds() -> None:
    costs = OnlineCosts(MODEL)
    for ms in (1e-9, 1e12) * 50:
        costs.seen(step(0, ms=ms, joules=1e9), prompt_tokens=60, done=4, load=0.0)
    found = costs.ms("decode", prompt_tokens=60, done=4)
    assert np.isfinite(found).all() and (found > 0).all()
    assert np.isfinite(costs.watts("decode")).all()


def test_a_board_not_seen_before_is_learned_within_200_requests() -> None:
    other = MODEL.perturbed(static=1.3, slower_memory=1.25)
    controller = Learned(MODEL, blank(N_FEATURES, 4, N_OUTPUTS))
    for seed in (0, 1):
        jobs = workload(other, n=100, part="train", seed=seed)
        run = simulate(other, controller, jobs)
    base = simulate(other, rule("performance", other), jobs)
    bound = optimum(other, jobs).energy_j
    assert (run.energy_j - bound) / (base.energy_j - bound) <= 0.2
    assert run.violation_ttft == run.violation_tpot == 0.0
