"""The clairvoyant optimum beside brute force, and every controller above it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.power.base import Board, Domain, Goals
from floe.power.boards.model import BoardModel, grid
from floe.power.controllers.rules import RULES, rule
from floe.power.optimum import lower_hull, optimum
from floe.power.simulate import BLOCK_TOKENS, simulate
from floe.power.workload import Job


def board(times: list[float], watts: list[float]) -> BoardModel:
    """Settings with these milliseconds a token and watts; prefill takes as long for every token."""
    domain = Domain(name="gpu", steps_mhz=tuple(float(k + 1) for k in range(len(times))))
    ms_S, watts_S = np.array(times), np.array(watts)
    return BoardModel(
        board=Board(name="toy", domains=(domain,)),
        settings_SD=grid((domain,)),
        prefill_ms=lambda tokens: ms_S * tokens,
        decode_ms=lambda context: ms_S,
        prefill_w_S=watts_S,
        decode_w_S=watts_S,
        idle_w_S=watts_S / 10,
        switch_ms=0.0,
    )


def job(prompt: int, output: int, ttft: float, tpot: float, arrival_s: float | None = None) -> Job:
    return Job(
        pause_s=1.0, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output,
        goals=Goals(ttft_ms=ttft, tpot_ms=tpot), service="x",
    )  # fmt: skip


def brute_force(model: BoardModel, one: Job) -> float | None:
    """The least joules over every setting of every block, goals met; None when nothing meets."""
    blocks = [BLOCK_TOKENS] * ((one.output_tokens - 1) // BLOCK_TOKENS)
    if rest := (one.output_tokens - 1) % BLOCK_TOKENS:
        blocks.append(rest)
    ms, watts = model.decode_ms(0), model.decode_w_S
    best: float | None = None
    for first in range(model.n_settings):
        prefill_ms = float(model.prefill_ms(one.prompt_tokens)[first])
        if prefill_ms > one.goals.ttft_ms:
            continue
        for chosen in itertools.product(range(model.n_settings), repeat=len(blocks)):
            times = [float(ms[s]) * n for s, n in zip(chosen, blocks, strict=True)]
            if sum(times) > one.goals.tpot_ms * (one.output_tokens - 1) * (1 + 1e-9):
                continue
            joules = prefill_ms * float(watts[first]) / 1000
            joules += sum(t * float(watts[s]) / 1000 for t, s in zip(times, chosen, strict=True))
            best = joules if best is None else min(best, joules)
    return best


SETTINGS = st.lists(
    st.tuples(st.floats(1.0, 9.0), st.floats(0.5, 9.0)), min_size=2, max_size=3, unique=True
)


@settings(max_examples=80, deadline=None)
@given(SETTINGS, st.integers(1, 30), st.integers(2, 33), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_it_is_never_above_brute_force_and_near_it(
    pairs: list[tuple[float, float]], prompt: int, output: int, ttft: float, tpot: float
) -> None:
    model = board([t for t, _ in pairs], [w for _, w in pairs])
    fastest = min(t for t, _ in pairs)
    one = job(prompt, output, ttft * fastest * prompt, tpot * fastest)
    slow, found = brute_force(model, one), optimum(model, [one])
    assert slow is not None and found.violation_ttft == found.violation_tpot == 0
    assert found.energy_j <= slow * (1 + 1e-9)
    # What mixing inside a block can save beyond whole blocks is one block's worth at most.
    worst_token_j = max(t * w for t, w in pairs) / 1000
    assert found.energy_j >= slow - 2 * BLOCK_TOKENS * worst_token_j - 1e-9


def test_a_goal_that_nothing_meets_is_counted() -> None:
    model = board([2.0, 1.0], [1.0, 3.0])
    found = optimum(model, [job(10, 5, 1.0, 0.5)])
    assert found.violation_ttft == found.violation_tpot == 1.0
    assert found.energy_j == pytest.approx((10 + 4) * 1.0 * 3.0 / 1000)
    assert optimum(model, []).energy_j == 0.0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(2, 20), st.floats(0.0, 0.2)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_in_a_queue_it_is_below_every_rule_that_meets_the_goals(
    jobs: list[tuple[int, int, float]],
) -> None:
    model = board([4.0, 2.0, 1.0], [1.0, 2.5, 8.0])
    arrivals = np.cumsum([gap for _, _, gap in jobs])
    queue = [
        job(p, o, 40.0 + 2.0 * p, 2.5, float(at))
        for (p, o, _), at in zip(jobs, arrivals, strict=True)
    ]
    bound = optimum(model, queue)
    full = simulate(model, rule("performance", model), queue)
    assert bound.violation_ttft <= full.violation_ttft + 1e-9
    for name in RULES:
        ran = simulate(model, rule(name, model), queue)
        if ran.violation_ttft + ran.violation_tpot == 0:
            assert bound.energy_j <= ran.energy_j * (1 + 1e-6), name


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=8))
def test_the_hull_is_convex_and_below_every_setting(points: list[tuple[float, float]]) -> None:
    t, e = (np.array(column) for column in zip(*points, strict=True))
    hull = lower_hull(t, e)
    assert hull[0] in np.flatnonzero(t == t.min())
    assert e[hull[-1]] == e.min()
    for k in range(len(t)):
        for a, b in itertools.pairwise(hull):
            if t[a] <= t[k] <= t[b]:
                line = e[a] + (e[b] - e[a]) * (t[k] - t[a]) / (t[b] - t[a])
                assert e[k] >= line - 1e-9
