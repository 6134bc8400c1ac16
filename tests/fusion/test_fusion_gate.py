from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusion_rows import log_probs, net
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig
from floe.fusion.features import EDGE_NAMES, edge_features
from floe.fusion.gate import N_QUANTILES, SureGate, quantiles_of

PLACES = [log_probs(np.random.default_rng(i), 60, sharp=1 + i % 5) for i in range(400)]
NET = net(EDGE_NAMES, 2)
QUANTILES = quantiles_of(NET(np.stack([edge_features(p) for p in PLACES])))


def gate(cloud_share: float) -> SureGate:
    return SureGate(net=NET, quantiles=QUANTILES, cloud_share=cloud_share)


@pytest.mark.parametrize("cloud_share", [0.1, 0.3, 0.5, 0.9])
def test_b31_the_share_asked_for_is_the_share_on_the_calibration_text(cloud_share: float) -> None:
    asked = [not gate(cloud_share).is_sure(p) for p in PLACES]
    assert np.mean(asked) == pytest.approx(cloud_share, abs=0.02)


def test_b31_on_other_text_the_share_is_another_one() -> None:
    """The knob is a quantile of one text; sharper text asks for a different share."""
    sharp = [log_probs(np.random.default_rng(i), 60, sharp=9.0) for i in range(200)]
    real = np.mean([not gate(0.5).is_sure(p) for p in sharp])
    assert abs(real - 0.5) > 0.1


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, len(PLACES) - 1))
@settings(max_examples=100, deadline=None)
def test_a_smaller_share_asks_at_no_other_place(a: float, b: float, place: int) -> None:
    if gate(max(a, b)).is_sure(PLACES[place]):
        assert gate(min(a, b)).is_sure(PLACES[place])


def test_the_ends_of_the_knob() -> None:
    assert not any(gate(1.0).is_sure(p) for p in PLACES)
    assert all(gate(0.0).is_sure(p) for p in PLACES)


def test_it_comes_back_from_json_as_it_was() -> None:
    again = SureGate.from_json(gate(0.4).as_json(), cloud_share=0.4)
    same = [again.is_sure(p) == gate(0.4).is_sure(p) for p in PLACES]
    assert np.mean(same) > 0.99
    assert again.threshold == pytest.approx(gate(0.4).threshold, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantiles": [1.0]}, f"the fusion gate must have {N_QUANTILES} quantiles"),
        ({"quantiles": [1.0, 0.0] * 50 + [2.0]}, "the fusion gate's quantiles must be rising"),
        ({"quantiles": ["x"] * N_QUANTILES}, "the fusion gate's quantiles must be rising"),
        ({"net": {}}, "the fusion weights cannot be used"),
    ],
)
def test_a_gate_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        SureGate.from_json(gate(0.5).as_json() | change, cloud_share=0.5)
