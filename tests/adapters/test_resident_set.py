"""The resident set beside brute force: exact when small, within the bound when greedy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.adapters.resident_set import Choice, Problem, change_cost, choose_set, set_value


@st.composite
def problems(draw: st.DrawFn, *, most: int = 8, equal_sizes: bool = False) -> Problem:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    k, t = draw(st.integers(1, most)), draw(st.integers(1, 12))
    sizes = [7] * k if equal_sizes else rng.integers(1, 30, k).tolist()
    return Problem(
        utilities=rng.standard_normal((t, k)) * rng.uniform(0.1, 2, k),
        costs=rng.uniform(0, 1.5, k),
        n_bytes=tuple(int(s) for s in sizes),
        budget_bytes=draw(st.integers(0, 60)),
    )


def brute_force(problem: Problem) -> tuple[float, frozenset[int]]:
    best = (-math.inf, frozenset[int]())
    for r in range(len(problem.costs) + 1):
        for members in itertools.combinations(range(len(problem.costs)), r):
            if sum(problem.n_bytes[i] for i in members) <= problem.budget_bytes:
                net = slow_value(problem, set(members)) - change_cost(problem, members)
                best = max(best, (net, frozenset(members)), key=lambda b: b[0])
    return best


def slow_value(problem: Problem, members: set[int]) -> float:
    total = 0.0
    for row in problem.utilities:
        offers = [
            u if i in members else u - c
            for i, (u, c) in enumerate(zip(row, problem.costs, strict=True))
        ]
        total += max(0.0, *offers)
    return total / len(problem.utilities)


def fits(problem: Problem, choice: Choice) -> bool:
    return sum(problem.n_bytes[i] for i in choice.members) <= problem.budget_bytes


@settings(max_examples=80, deadline=None)
@given(problem=problems(), data=st.data())
def test_few_adapters_are_chosen_exactly(problem: Problem, data: st.DataObject) -> None:
    current = data.draw(st.frozensets(st.integers(0, len(problem.costs) - 1)))
    problem = replace(problem, current=current, horizon=data.draw(st.sampled_from([1, 20, 1e9])))
    found = choose_set(problem)
    best, _ = brute_force(problem)
    assert fits(problem, found)
    assert found.is_exact
    assert found.net == pytest.approx(best, abs=1e-9)
    assert found.value == pytest.approx(slow_value(problem, set(found.members)), abs=1e-9)


@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_greedy_holds_its_bound_with_unequal_sizes(problem: Problem) -> None:
    found = choose_set(problem, exact_up_to=0)
    best, _ = brute_force(problem)
    nothing = set_value(problem, ())
    assert fits(problem, found)
    gain, most = found.value - nothing, best - nothing
    assert gain >= (1 - 1 / math.e) / 2 * most - 1e-9


@settings(max_examples=120, deadline=None)
@given(problem=problems(equal_sizes=True))
def test_greedy_holds_its_bound_with_equal_sizes(problem: Problem) -> None:
    found = choose_set(problem, exact_up_to=0)
    best, _ = brute_force(problem)
    nothing = set_value(problem, ())
    assert found.value - nothing >= (1 - 1 / math.e) * (best - nothing) - 1e-9


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_value_grows_with_the_set_by_less_and_less(
    problem: Problem, data: st.DataObject
) -> None:
    indices = st.integers(0, len(problem.costs) - 1)
    small = data.draw(st.frozensets(indices))
    large = small | data.draw(st.frozensets(indices))
    one = data.draw(indices)
    f = {name: set_value(problem, s) for name, s in (("s", small), ("l", large))}
    with_one = {name: set_value(problem, s | {one}) for name, s in (("s", small), ("l", large))}
    assert f["l"] >= f["s"] - 1e-12
    assert with_one["s"] - f["s"] >= with_one["l"] - f["l"] - 1e-12
    assert f["s"] == pytest.approx(slow_value(problem, set(small)), abs=1e-9)


def two(horizon: float, hysteresis: float = 0.0) -> Problem:
    """Adapter 0 is there; 1 would be 0.1 a request better, and costs 5 to load."""
    return Problem(
        utilities=np.array([[1.0, 1.1]]), costs=np.array([5.0, 5.0]), n_bytes=(1, 1),
        budget_bytes=1, current=frozenset({0}), horizon=horizon, hysteresis=hysteresis,
    )  # fmt: skip


def test_a_change_must_pay_for_its_load_within_the_horizon() -> None:
    assert choose_set(two(horizon=40)).members == {0}
    assert choose_set(two(horizon=60)).members == {1}
    assert choose_set(two(horizon=60, hysteresis=0.05)).members == {0}
    for exact_up_to in (0, 14):
        assert choose_set(two(horizon=60), exact_up_to=exact_up_to).members == {1}


def test_what_does_not_fit_or_never_helps_is_not_chosen() -> None:
    problem = Problem(
        utilities=np.array([[2.0, 1.0, -0.5]]), costs=np.zeros(3) + 3, n_bytes=(10, 4, 1),
        budget_bytes=8,
    )  # fmt: skip
    assert choose_set(problem).members == {1}
    assert choose_set(replace(problem, budget_bytes=0)).members == frozenset()


def test_a_present_set_above_the_budget_goes() -> None:
    problem = replace(two(horizon=1), current=frozenset({0, 1}), hysteresis=9.0)
    assert len(choose_set(problem).members) == 1


def test_without_prompts_the_present_set_stays() -> None:
    problem = replace(two(horizon=1), utilities=np.zeros((0, 2)))
    assert choose_set(problem).members == {0}


def test_hundreds_of_adapters_are_chosen_among_in_good_time() -> None:
    rng = np.random.default_rng(5)
    problem = Problem(
        utilities=rng.standard_normal((256, 300)), costs=rng.uniform(0, 1, 300),
        n_bytes=tuple(rng.integers(1, 40, 300).tolist()), budget_bytes=400,
    )  # fmt: skip
    found = choose_set(problem)
    assert not found.is_exact
    assert fits(problem, found)
    by_size = np.argsort(problem.n_bytes)
    cheap = by_size[np.cumsum(np.array(problem.n_bytes)[by_size]) <= 400]
    assert found.value > set_value(problem, cheap.tolist())
