import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets, Cost
from floe.tailoring.score import PRINTED, RELEASED, Score

positive = st.floats(min_value=0.01, max_value=1e4)


def cost(decode_ms, energy_mj=None):
    return Cost(prefill_ms=1.0, decode_ms=decode_ms, memory_bytes=1, energy_mj=energy_mj)


@given(ppl=positive, time=positive, energy=positive, room=st.floats(1.0, 10.0))
def test_inside_both_budgets_only_perplexity_counts(ppl, time, energy, room):
    budgets = Budgets(decode_ms=time * room, energy_mj=energy * room)
    assert PRINTED(ppl, cost(time, energy), budgets) == 1.0 / ppl


@given(ppl=positive, time=positive, energy=positive, t=positive, e=positive)
def test_equation_one_written_out(ppl, time, energy, t, e):
    expected = (1 / ppl) * (e / energy) ** (2 * (e < energy)) * (t / time) ** (2 * (t < time))
    assert PRINTED(ppl, cost(time, energy), Budgets(decode_ms=t, energy_mj=e)) == pytest.approx(
        expected
    )


@given(ppl=positive, more=st.floats(1.001, 10.0), time=positive, t=positive)
def test_a_worse_plan_never_scores_more(ppl, more, time, t):
    budgets = Budgets(decode_ms=t)
    score = PRINTED(ppl, cost(time), budgets)
    assert PRINTED(ppl * more, cost(time), budgets) < score
    assert PRINTED(ppl, cost(time * more), budgets) <= score


@given(ppl=positive, time=positive, t=positive)
def test_the_released_script_gives_a_bonus_inside_and_nothing_outside(ppl, time, t):
    expected = (1 / ppl) * (t / time if time < t else 1.0)
    assert RELEASED(ppl, cost(time), Budgets(decode_ms=t)) == pytest.approx(expected)


def test_the_exponents_are_the_papers():
    assert Score() == PRINTED
    assert (PRINTED.alpha, PRINTED.beta) == (2.0, 2.0)
    over = PRINTED(10.0, cost(2.0), Budgets(decode_ms=1.0))
    assert over == pytest.approx(0.1 / 4)


def test_no_number_scores_nothing():
    assert PRINTED(math.inf, cost(1.0), Budgets()) == 0.0
    assert PRINTED(math.nan, cost(1.0), Budgets()) == 0.0


def test_an_energy_budget_needs_energy():
    with pytest.raises(BadPlan, match="no energy; profile with a meter"):
        PRINTED(10.0, cost(1.0), Budgets(energy_mj=1.0))


def test_a_perplexity_is_above_zero():
    with pytest.raises(ValueError, match="above 0, not 0"):
        PRINTED(0.0, cost(1.0), Budgets())
