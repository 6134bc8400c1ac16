"""The soft gate against slow twins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.routing.gate import STEPS, gate, in_steps

cosines = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


def slow_choice(cos: list[float], temperature: float, top_k: int, min_share: float) -> list[int]:
    """The chosen, by repeated search for the best that is left."""
    total = sum(math.exp((c - max(cos)) / temperature) for c in cos)
    share = [math.exp((c - max(cos)) / temperature) / total for c in cos]
    chosen: list[int] = []
    while len(chosen) < min(top_k, len(cos)):
        best = None
        for k in range(len(cos)):
            if k not in chosen and (best is None or share[k] > share[best]):
                best = k
        assert best is not None
        if chosen and share[best] < min_share:
            break
        chosen.append(best)
    return chosen


@given(
    cos=cosines,
    temperature=st.floats(0.01, 2),
    top_k=st.integers(1, 4),
    min_share=st.floats(0, 0.5),
)
def test_the_gate_equals_its_slow_twin(
    cos: list[float], temperature: float, top_k: int, min_share: float
) -> None:
    gated = gate(cos, temperature=temperature, top_k=top_k, threshold=-1, min_share=min_share)
    total = sum(math.exp((c - max(cos)) / temperature) for c in cos)
    expected = [math.exp((c - max(cos)) / temperature) / total for c in cos]
    assert gated.softmax == pytest.approx(expected)
    # Shares within rounding of each other or of min_share may fall either way.
    close = [abs(a - b) < 1e-9 for a, b in itertools.combinations([*gated.softmax, min_share], 2)]
    if not any(close):
        chosen = slow_choice(cos, temperature, top_k, min_share)
        kept = sum(expected[k] for k in chosen)
        got = dict(gated.shares)
        assert set(got) <= set(chosen)
        for k in chosen:
            assert abs(got.get(k, 0.0) - expected[k] / kept) < 1 / STEPS + 1e-9


@given(cos=cosines, temperature=st.floats(0.001, 5), top_k=st.integers(1, 6))
def test_shares_are_whole_steps_that_sum_to_one(
    cos: list[float], temperature: float, top_k: int
) -> None:
    gated = gate(cos, temperature=temperature, top_k=top_k, threshold=-1, min_share=0)
    assert math.fsum(share for _, share in gated.shares) == 1.0
    for _, share in gated.shares:
        assert share * STEPS == pytest.approx(round(share * STEPS))
        assert share == round(share * STEPS) / STEPS > 0
    assert 1 <= len(gated.shares) <= top_k
    shares = [share for _, share in gated.shares]
    assert shares == sorted(shares, reverse=True)
    assert math.fsum(gated.softmax) == pytest.approx(1)


@given(weights=st.lists(st.floats(0.001, 1), min_size=1, max_size=4))
def test_no_other_whole_steps_are_nearer(weights: list[float]) -> None:
    units = in_steps(np.array(weights))
    exact = [w / sum(weights) * STEPS for w in weights]
    distances = [
        sum(abs(u - e) for u, e in zip((*first, STEPS - sum(first)), exact, strict=True))
        for first in itertools.product(range(STEPS + 1), repeat=len(weights) - 1)
        if sum(first) <= STEPS
    ]
    assert sum(units) == STEPS
    assert sum(abs(u - e) for u, e in zip(units, exact, strict=True)) <= min(distances) + 1e-9


def test_below_the_threshold_the_base_stays_plain() -> None:
    options = {"temperature": 0.1, "top_k": 2, "min_share": 0.2}
    below = gate([0.24, 0.1], threshold=0.25, **options)
    assert below.shares == ()
    assert below.softmax[0] > below.softmax[1]
    assert gate([0.25, 0.1], threshold=0.25, **options).shares[0][0] == 0


def test_no_candidates_give_no_shares() -> None:
    assert gate([], temperature=1, top_k=1, threshold=0, min_share=0).shares == ()


def test_the_best_stays_even_without_the_least_share() -> None:
    gated = gate([0.5] * 10, temperature=1, top_k=3, threshold=0, min_share=0.2)
    assert gated.shares == ((0, 1.0),)


def test_a_tiny_temperature_is_one_adapter_without_overflow() -> None:
    gated = gate([0.9, 0.8, -1], temperature=1e-6, top_k=3, threshold=0, min_share=0)
    assert gated.shares == ((0, 1.0),)
