"""Epsilons against analytic formulas, RDP, numeric integration, and Opacus' accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("dp_accounting", reason="needs floe[dp]")

from floe.core.errors import BadConfig
from floe.federated.accountant import (
    MAX_ROUNDS,
    epsilon,
    gaussian_delta,
    gaussian_epsilon,
    noise_for,
    rounds_within,
    subset_delta,
)
from floe.federated.sampling import Mechanism, Sampling

DELTA = 1e-5


def mechanism(
    noise: float, rate: float = 1.0, steps: int = 1, kind: str = "poisson", unit: str = "example"
) -> Mechanism:
    sampling = Sampling(kind=kind, rate=rate)  # type: ignore[arg-type]
    return Mechanism(noise_multiplier=noise, sampling=sampling, steps=steps, unit=unit)  # type: ignore[arg-type]


def normal_pdf(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))


def integrated_delta(eps: float, *, noise: float, rate: float, shift: float = 1.0) -> float:
    """The larger hockey-stick divergence of one sampled release, by summing over a fine line."""
    x = np.linspace(-14 * noise, shift + 14 * noise, 100_001)
    without = normal_pdf(x, 0, noise)
    mixed = (1 - rate) * without + rate * normal_pdf(x, shift, noise)
    step = x[1] - x[0]
    return max(
        float(np.maximum(p - math.exp(eps) * q, 0).sum() * step)
        for p, q in ((mixed, without), (without, mixed))
    )


def rdp_epsilon(noise: float, rate: float, steps: int) -> float:
    """The moments accountant's bound (integer orders, Mironov, Talwar and Zhang 2019)."""
    best = math.inf
    for order in range(2, 200):
        terms = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + k * math.log(rate) + (order - k) * math.log1p(-rate)
            + k * (k - 1) / (2 * noise**2)
            for k in range(order + 1)
        ]  # fmt: skip
        top = max(terms)
        moment = top + math.log(sum(math.exp(t - top) for t in terms))
        best = min(best, (steps * moment + math.log(1 / DELTA)) / (order - 1))
    return best


@given(noise=st.floats(0.3, 20.0), eps=st.floats(0.01, 8.0))
def test_the_gaussian_curve_is_that_of_an_integral(noise: float, eps: float) -> None:
    exact = float(gaussian_delta(np.array(eps), noise=noise))
    assert exact == pytest.approx(integrated_delta(eps, noise=noise, rate=1.0), rel=1e-4, abs=1e-11)


@given(noise=st.floats(0.05, 50.0))
def test_the_gaussian_epsilon_lies_on_the_curve(noise: float) -> None:
    eps = gaussian_epsilon(noise, delta=DELTA)
    if eps > 0:
        found = float(gaussian_delta(np.array(eps), noise=noise))
        assert found == pytest.approx(DELTA, rel=1e-3)
        assert found <= DELTA


@pytest.mark.parametrize("noise", [0.8, 1.5, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_one_poisson_step_is_that_of_an_integral(noise: float, rate: float) -> None:
    eps = epsilon(mechanism(noise, rate), delta=DELTA)
    assert integrated_delta(eps, noise=noise, rate=rate) <= DELTA * 1.001
    assert integrated_delta(eps * 0.99 - 1e-4, noise=noise, rate=rate) > DELTA


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_one_subset_step_is_that_of_an_integral(noise: float, rate: float) -> None:
    eps = epsilon(mechanism(noise, rate, kind="fixed"), delta=DELTA)
    assert integrated_delta(eps, noise=noise, rate=rate, shift=2.0) <= DELTA * 1.001
    assert integrated_delta(eps * 0.98 - 1e-3, noise=noise, rate=rate, shift=2.0) > DELTA


@given(noise=st.floats(0.4, 5.0), rate=st.floats(0.01, 1.0), eps=st.floats(0.0, 6.0))
def test_the_subset_curve_is_that_of_an_integral(noise: float, rate: float, eps: float) -> None:
    exact = float(subset_delta(np.array(eps), noise=noise, rate=rate))
    slow = integrated_delta(eps, noise=noise, rate=rate, shift=2.0)
    assert exact == pytest.approx(slow, rel=1e-3, abs=1e-9)


@settings(max_examples=8, deadline=None)
@given(
    noise=st.floats(0.6, 4.0), rate=st.floats(0.002, 0.3), steps=st.integers(1, 400),
)  # fmt: skip
def test_below_the_moments_bound_and_not_far(noise: float, rate: float, steps: int) -> None:
    found, bound = (
        epsilon(mechanism(noise, rate, steps), delta=DELTA),
        rdp_epsilon(noise, rate, steps),
    )
    assert found <= bound * 1.001
    assert found >= 0.2 * bound - 0.9  # the bound's own slack at small epsilons


def test_as_opacus_prv_accountant_says() -> None:
    pytest.importorskip("opacus", reason="needs floe[dp]")
    from floe.federated.on_torch.prv import prv_epsilon

    for noise, rate, steps in ((0.8, 0.01, 300), (1.5, 0.05, 100)):
        other = prv_epsilon(noise_multiplier=noise, rate=rate, steps=steps, delta=DELTA)
        assert epsilon(mechanism(noise, rate, steps), delta=DELTA) == pytest.approx(other, rel=0.01)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "by_opacus"),  # its PRV accountant, with an error of 0.005 upwards
    [(1.0, 1e-3, 100_000, 1.6423), (1.0, 1e-4, 1_000_000, 0.4642), (5.0, 0.01, 100_000, 2.6320)],
)
def test_many_rare_steps_do_not_add_up_the_grids_rounding(
    noise: float, rate: float, steps: int, by_opacus: float
) -> None:
    assert epsilon(mechanism(noise, rate, steps), delta=DELTA) == pytest.approx(
        by_opacus - 0.005, rel=0.01
    )


def test_what_no_grid_holds_is_infinite_at_once() -> None:
    for noise, rate, steps in ((1.0, 0.01, 10**9), (1e-9, 0.01, 1), (0.001, 1e-9, 10)):
        assert epsilon(mechanism(noise, rate, steps), delta=DELTA) == float("inf")
    sampling = Sampling(kind="poisson", rate=0.1)
    assert noise_for(1e9, sampling=sampling, steps=1, delta=DELTA) < 0.2
    never = mechanism(1.0, 1e-12, 1)
    assert rounds_within(3.0, never, delta=DELTA) == MAX_ROUNDS


def test_the_quoted_noise_of_one_half_holds_for_some_rates_alone() -> None:
    assert epsilon(mechanism(0.5, 0.001, 100), delta=DELTA) < 3
    assert epsilon(mechanism(0.5, 0.01, 100), delta=DELTA) > 6
    assert epsilon(mechanism(0.5, kind="all"), delta=DELTA) > 9.9


def test_c13_kinds_of_sampling_cost_differently() -> None:
    by_kind = {
        kind: epsilon(mechanism(1.0, 0.01, 500, kind=kind), delta=DELTA)
        for kind in ("poisson", "fixed", "shuffled")
    }
    assert by_kind["poisson"] < 1.5 < 10 < min(by_kind["fixed"], by_kind["shuffled"])


def test_a_pass_of_shuffled_batches_is_one_gaussian() -> None:
    one = epsilon(mechanism(2.0, 0.1, 10, kind="shuffled"), delta=DELTA)
    assert one == pytest.approx(epsilon(mechanism(2.0, kind="all"), delta=DELTA))
    begun = epsilon(mechanism(2.0, 0.1, 11, kind="shuffled"), delta=DELTA)
    assert begun == pytest.approx(epsilon(mechanism(2.0, kind="all", steps=2), delta=DELTA))


def test_replacing_one_moves_twice_as_far() -> None:
    once = mechanism(2.0, kind="all", steps=3)
    half = mechanism(1.0, kind="all", steps=3)
    assert epsilon(once, delta=DELTA, adjacency="replace_one") == pytest.approx(
        epsilon(half, delta=DELTA)
    )
    sampled = mechanism(1.0, 0.05, 50)
    assert epsilon(sampled, delta=DELTA, adjacency="replace_one") > epsilon(sampled, delta=DELTA)
    assert epsilon(mechanism(1.0, kind="fixed"), delta=DELTA) == pytest.approx(
        epsilon(mechanism(1.0, kind="all"), delta=DELTA, adjacency="replace_one")
    )


def test_rounds_with_differing_parameters_add_up() -> None:
    parts = [mechanism(2.0, kind="all"), mechanism(3.0, kind="all", steps=2)]
    together = 1 / math.sqrt(1 / 4 + 2 / 9)
    assert epsilon(parts, delta=DELTA) == pytest.approx(gaussian_epsilon(together, delta=DELTA))
    split = [mechanism(1.0, 0.02, 30), mechanism(1.0, 0.02, 70)]
    assert epsilon(split, delta=DELTA) == epsilon(mechanism(1.0, 0.02, 100), delta=DELTA)
    mixed = epsilon([mechanism(1.0, 0.02, 50), mechanism(4.0, kind="all")], delta=DELTA)
    assert mixed > max(
        epsilon(mechanism(1.0, 0.02, 50), delta=DELTA),
        epsilon(mechanism(4.0, kind="all"), delta=DELTA),
    )
    assert epsilon([], delta=DELTA) == 0.0


def test_a_drawn_step_at_rate_one_is_a_gaussian_on_the_grid_too() -> None:
    """The mixed way (grids) agrees with the analytic one where both apply."""
    tiny = mechanism(300.0, 0.001, 1)  # next to nothing, but it makes the grid be used
    found = epsilon([mechanism(1.5, kind="all", steps=2), tiny], delta=DELTA)
    assert found == pytest.approx(
        epsilon(mechanism(1.5, kind="all", steps=2), delta=DELTA), rel=2e-3
    )


@settings(max_examples=4, deadline=None)
@given(target=st.floats(0.6, 8.0), rate=st.sampled_from([0.02, 0.2]), steps=st.integers(1, 200))
def test_the_noise_for_a_target_just_fits(target: float, rate: float, steps: int) -> None:
    sampling = Sampling(kind="poisson", rate=rate)
    noise = noise_for(target, sampling=sampling, steps=steps, delta=DELTA)
    assert epsilon(mechanism(noise, rate, steps), delta=DELTA) <= target
    assert epsilon(mechanism(noise * 0.99, rate, steps), delta=DELTA) > target


def test_noise_and_rounds_know_what_is_spent() -> None:
    spent = [mechanism(1.0, 0.02, 100)]
    sampling = Sampling(kind="poisson", rate=0.02)
    fresh = noise_for(3.0, sampling=sampling, steps=100, delta=DELTA)
    later = noise_for(3.0, sampling=sampling, steps=100, delta=DELTA, spent=spent)
    assert later > fresh
    assert epsilon([*spent, mechanism(later, 0.02, 100)], delta=DELTA) <= 3.0
    with pytest.raises(BadConfig, match=r"no noise keeps 10 steps within epsilon 0.1"):
        noise_for(0.1, sampling=sampling, steps=10, delta=DELTA, spent=spent)


@pytest.mark.parametrize("kind", ["poisson", "fixed", "shuffled"])
def test_the_rounds_that_fit_fit_and_one_more_does_not(kind: str) -> None:
    one = mechanism(3.0, 0.1, 5, kind=kind)
    rounds = rounds_within(2.0, one, delta=DELTA)
    assert rounds >= 1
    fit, over = [one] * rounds, [one] * (rounds + 1)
    assert epsilon(fit, delta=DELTA) <= 2.0 < epsilon(over, delta=DELTA)
    assert rounds_within(2.0, mechanism(0.1, kind="all"), delta=DELTA) == 0
    assert rounds_within(2.0, one, delta=DELTA, spent=fit) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_c11_targets_and_deltas_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(BadConfig, match=r"delta is .*above 0 and below 1"):
        epsilon(mechanism(1.0), delta=bad)
    with pytest.raises(BadConfig, match=r"target epsilon is .*finite and above 0"):
        noise_for(bad, sampling=Sampling(kind="all"), steps=1, delta=DELTA)
    with pytest.raises(BadConfig, match=r"target epsilon is .*finite and above 0"):
        rounds_within(bad, mechanism(1.0), delta=DELTA)
    with pytest.raises(BadConfig, match=r"delta is 1"):
        epsilon(mechanism(1.0), delta=1)


def test_promises_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"different promises"):
        epsilon([mechanism(1.0), mechanism(1.0, unit="client")], delta=DELTA)
    with pytest.raises(BadConfig, match=r'use "add_remove" or "replace_one"'):
        epsilon(mechanism(1.0), delta=DELTA, adjacency="both")  # type: ignore[arg-type]
