from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.fusion.mix import mix

weights = st.floats(0.0, 1.0)
rows = st.lists(st.floats(-300.0, 0.0), min_size=5, max_size=5)


def normal(logits: list[float]) -> np.ndarray:
    return np.array(logits) - np.log(np.exp(logits - np.max(logits)).sum()) - np.max(logits)


@given(rows, rows, weights)
@settings(max_examples=200, deadline=None)
def test_it_is_the_sum_done_the_slow_way(q: list[float], p: list[float], weight: float) -> None:
    log_q_V, p_V = normal(q).astype(np.float32), np.exp(normal(p))
    log_f_V = mix(log_q_V, p_V, weight)
    assert not np.isnan(log_f_V).any()
    for got, one, other in zip(log_f_V, log_q_V, p_V, strict=True):
        wanted = weight * math.exp(float(one)) + (1.0 - weight) * float(other)
        assert math.exp(got) == pytest.approx(wanted, rel=1e-5, abs=1e-300)


def test_at_weight_one_the_slm_comes_back_bit_for_bit_and_at_zero_only_the_cloud_counts() -> None:
    log_q_V = normal([0.0, -1.0, -2.0]).astype(np.float32)
    p_V = np.array([0.0, 0.25, 0.75])
    assert mix(log_q_V, p_V, 1.0) is log_q_V
    assert np.exp(mix(log_q_V, p_V, 0.0)) == pytest.approx(p_V)
    assert np.isneginf(mix(log_q_V, p_V, 0.0)[0])


def test_wrong_weights_and_two_vocabularies_are_refused() -> None:
    log_q_V, p_V = np.zeros(3, dtype=np.float32), np.zeros(3)
    with pytest.raises(ValueError, match=r"weight must be between 0 and 1, not 1\.5"):
        mix(log_q_V, p_V, 1.5)
    with pytest.raises(ValueError, match=r"the shapes differ: \(3,\) and \(4,\)"):
        mix(log_q_V, np.zeros(4), 0.5)
