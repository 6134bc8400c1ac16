"""Batches are drawn as they are accounted for."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig
from floe.federated.sampling import Mechanism, Sampling, same_sampling

RATES = st.floats(0.001, 1.0)


@given(kind=st.sampled_from(["fixed", "shuffled"]), rate=RATES, n=st.integers(1, 60))
def test_a_batch_is_never_larger_than_accounted(kind: str, rate: float, n: int) -> None:
    sampling = Sampling(kind=kind, rate=rate)  # type: ignore[arg-type]
    if rate * n < 1 - 1e-9:
        with pytest.raises(BadConfig, match=r"less than one of"):
            sampling.draw(n=n, steps=1, seed=0)
        return
    for batch in sampling.draw(n=n, steps=5, seed=1):
        assert 1 <= len(batch) <= rate * n + 1e-6
        assert len(set(batch.tolist())) == len(batch)
        assert batch.min() >= 0
        assert batch.max() < n


@given(rate=RATES, n=st.integers(1, 60), steps=st.integers(1, 40), seed=st.integers(0, 99))
def test_nobody_is_shuffled_in_more_often_than_counted(
    rate: float, n: int, steps: int, seed: int
) -> None:
    sampling = Sampling(kind="shuffled", rate=max(rate, 1 / n))
    times = np.zeros(n, int)
    for batch in sampling.draw(n=n, steps=steps, seed=seed):
        times[batch] += 1
    assert times.max() <= sampling.passes(steps)


def test_poisson_batches_have_the_rate_and_may_be_empty() -> None:
    sampling = Sampling(kind="poisson", rate=0.02)
    sizes = [len(b) for b in sampling.draw(n=50, steps=4000, seed=0)]
    n = 50 * 4000
    assert abs(sum(sizes) / n - 0.02) < 5 * math.sqrt(0.02 * 0.98 / n)
    share_empty = np.mean([s == 0 for s in sizes])
    wanted = 0.98**50
    assert abs(share_empty - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / 4000)
    assert sampling.size(50) == 1
    assert sampling.size(10) == 1


def test_poisson_members_are_drawn_on_their_own() -> None:
    """Of fixed sizes, one in makes another less likely; not so here."""
    inside = np.zeros((4000, 10))
    for row, batch in zip(
        inside, Sampling(kind="poisson", rate=0.3).draw(n=10, steps=4000, seed=2), strict=True
    ):
        row[batch] = 1
    correlations = np.corrcoef(inside.T)[np.triu_indices(10, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(4000)


def test_all_takes_everybody_every_time() -> None:
    assert all(len(b) == 7 for b in Sampling(kind="all").draw(n=7, steps=3, seed=0))


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    def drawn(seed: int) -> list[list[int]]:
        draws = Sampling(kind="poisson", rate=0.4).draw(n=20, steps=5, seed=seed)
        assert [b.tolist() for b in draws] == [b.tolist() for b in draws]
        return [b.tolist() for b in draws]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_seed_is_not_printed() -> None:
    assert "12345" not in repr(Sampling(kind="all").draw(n=1, steps=1, seed=12345))


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0, -0.1, 1.1])
def test_c11_rates_out_of_range_are_refused(rate: float) -> None:
    with pytest.raises(BadConfig, match=r"above 0 and at most 1"):
        Sampling(kind="poisson", rate=rate)


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"no sampling is called 'uniform'; known: poisson"):
        Sampling(kind="uniform")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"its rate is 1, not 0.5"):
        Sampling(kind="all", rate=0.5)
    with pytest.raises(BadConfig, match=r"nobody to draw from"):
        Sampling(kind="all").draw(n=0, steps=1, seed=0)


@pytest.mark.parametrize("noise", [float("nan"), float("inf"), 0.0, -1.0, True])
def test_c11_noise_out_of_range_is_refused(noise: float) -> None:
    with pytest.raises(BadConfig, match=r"noise multiplier is .*finite and above 0"):
        Mechanism(noise_multiplier=noise, sampling=Sampling(kind="all"))


def test_c11_steps_and_units_out_of_range_are_refused() -> None:
    for steps in (0, -1, 1.5, True):
        with pytest.raises(BadConfig, match=r"whole number from 1"):
            Mechanism(noise_multiplier=1.0, sampling=Sampling(kind="all"), steps=steps)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r'use "example" or "client"'):
        Mechanism(noise_multiplier=1.0, sampling=Sampling(kind="all"), unit="user")  # type: ignore[arg-type]


def test_c13_a_mismatch_is_an_error() -> None:
    kinds = [Sampling(kind=k, rate=0.1) for k in ("poisson", "fixed", "shuffled")]  # type: ignore[arg-type]
    for one, other in pairwise(kinds):
        same_sampling(one, one)
        with pytest.raises(BadConfig, match=r"the epsilon would not hold"):
            same_sampling(one, other)
    with pytest.raises(BadConfig, match=r"at a rate of 0.2 but accounted"):
        same_sampling(Sampling(kind="poisson", rate=0.1), Sampling(kind="poisson", rate=0.2))
