from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.request import Sampling
from floe.fusion import sample
from floe.fusion.sample import Sampler, best, pick, shape

Q = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05])).astype(np.float32)
F = np.log(np.array([0.1, 0.2, 0.4, 0.05, 0.25]))
DRAWS = 20_000


def frequencies(sampling: Sampling, log_q_V: np.ndarray, log_f_V: np.ndarray):
    sampler = Sampler(sampling)
    choices = [sampler.draw(log_q_V, log_f_V, i) for i in range(DRAWS)]
    ids = np.bincount([c.id for c in choices], minlength=5) / DRAWS
    edge = np.bincount([c.edge_id for c in choices], minlength=5) / DRAWS
    return ids, edge, np.mean([c.id != c.edge_id for c in choices])


def slow_shape(probs: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    scaled = [p ** (1.0 / temperature) for p in probs]
    scaled = [s / sum(scaled) for s in scaled]
    kept, mass = set(), 0.0
    for i in sorted(range(len(scaled)), key=lambda i: -scaled[i]):
        if mass >= top_p and top_p < 1.0:
            break
        kept.add(i)
        mass += scaled[i]
    return np.array([s / sum(scaled[j] for j in kept) if i in kept else 0.0
                     for i, s in enumerate(scaled)])  # fmt: skip


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.6, 0.8), (1.0, 0.45)]
)
def test_a56_draws_follow_the_mix_exactly_and_differ_from_the_slm_as_seldom_as_can_be(
    temperature: float, top_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=11)
    ids, edge, changed = frequencies(sampling, Q, F)
    f = slow_shape(np.exp(F), temperature, top_p)
    q = slow_shape(np.exp(Q), temperature, top_p)
    bound = 4.5 * np.sqrt(0.25 / DRAWS)  # beyond 4 sigma for any share
    assert ids == pytest.approx(f, abs=bound)
    assert edge == pytest.approx(q, abs=bound)
    assert changed == pytest.approx(np.maximum(f - q, 0.0).sum(), abs=bound)


def test_a56_with_nothing_set_but_a_temperature_every_token_can_come() -> None:
    sampler = Sampler(Sampling(temperature=1.0))
    assert {sampler.draw(Q, Q, i).id for i in range(2000)} == {0, 1, 2, 3, 4}


def test_a53_a_tiny_temperature_is_greedy_and_ties_go_to_the_first() -> None:
    for temperature in (0.0, 1e-9, 0.01):
        sampler = Sampler(Sampling(temperature=temperature))
        assert [sampler.draw(Q, F, i).id for i in range(5)] == [2] * 5
        assert sampler.draw(Q, F, 0).edge_id == 0
    assert Sampler(Sampling()).draw(np.zeros(4), np.zeros(4), 0).id == 0


def test_a_seed_repeats_and_the_cloud_costs_no_random_numbers() -> None:
    for seed in (0, 7, -3, 2**70):
        one, two = (Sampler(Sampling(temperature=1.0, seed=seed)) for _ in range(2))
        drawn = [one.draw(Q, F if i % 2 else Q, i).edge_id for i in range(200)]
        assert drawn == [two.draw(Q, Q, i).id for i in range(200)]


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20).filter(lambda w: sum(w) > 1e-6),
    st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=300, deadline=None)
def test_pick_never_takes_what_has_no_weight(weights: list[float], uniform: float) -> None:
    token, rest = pick(np.array(weights), uniform)
    assert weights[token] > 0.0 and 0.0 <= rest < 1.0
    before = sum(weights[:token])
    assert (before + rest * weights[token]) / sum(weights) == pytest.approx(uniform, abs=1e-6)


@given(
    st.lists(st.floats(-12, 0), min_size=3, max_size=3000),
    st.floats(0.2, 3.0),
    st.floats(0.01, 0.999) | st.just(1.0),
)
@settings(max_examples=60, deadline=None)
def test_shape_equals_its_slow_twin(logits: list[float], temperature: float, top_p: float) -> None:
    probs = np.exp(np.round(logits, 3) + 1e-6 * np.arange(len(logits)))
    probs /= probs.sum()
    got, wanted = shape(np.log(probs), temperature, top_p), slow_shape(probs, temperature, top_p)
    if (got > 0).sum() == (wanted > 0).sum():
        assert got == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    else:  # rounding may shift the edge of the nucleus by one token
        assert abs(int((got > 0).sum()) - int((wanted > 0).sum())) == 1


def test_a_wide_nucleus_falls_back_to_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = np.full(50, np.log(1 / 50))
    wanted = shape(flat, 1.0, 0.9)
    monkeypatch.setattr(sample, "_NUCLEUS_GUESSES", (4, 8))
    assert np.array_equal(shape(flat, 1.0, 0.9), wanted)
    assert (wanted > 0).sum() in {45, 46}


def test_a52_what_cannot_come_is_not_among_the_best() -> None:
    log_probs_V = np.array([-np.inf, -0.5, -2.0, -np.inf, -0.5])
    top = best(log_probs_V, 4, lambda i: b"%d" % i)
    assert [(t.id, t.data, t.log_prob) for t in top] == [
        (1, b"1", -0.5), (4, b"4", -0.5), (2, b"2", -2.0),
    ]  # fmt: skip
    assert best(log_probs_V, 0, lambda i: b"") == ()
    assert len(best(np.zeros(3), 20, lambda i: b"")) == 3


def test_b38_masked_ids_are_never_drawn() -> None:
    log_q_V = np.concatenate([Q, np.full(3, -np.inf, dtype=np.float32)])
    log_f_V = np.concatenate([F, np.full(3, -np.inf)])
    for top_p in (1.0, 0.95):
        sampler = Sampler(Sampling(temperature=3.0, top_p=top_p, seed=1))
        choices = [sampler.draw(log_q_V, log_f_V, i) for i in range(2000)]
        assert {c.id for c in choices} | {c.edge_id for c in choices} == {0, 1, 2, 3, 4}
