"""Secure sums never change a value in silence (C25)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadUpdate
from floe.federated.shields.secagg import FixedPoint, fit_range, out_of_range
from floe.federated.update import AdapterState, Factors

FIXED = FixedPoint()
B_OR = np.array([[0.5, 1.0], [2.0, 4.0]], np.float32)


def state_of(b_OR: np.ndarray) -> AdapterState:
    a_RI = np.eye(2, 3, dtype=np.float32) * 100  # shared: never summed, so never judged
    return AdapterState(base_digest="", modules={"q": Factors(a_RI=a_RI, b_OR=b_OR)})


def test_c25_out_of_range_raises_or_is_counted() -> None:
    fit_range(state_of(B_OR), FIXED)
    too_large = state_of(B_OR * 3)  # 12 is above 8, as in the report
    with pytest.raises(BadUpdate, match=r"1 of 4 values are outside .*\+-8") as refused:
        fit_range(too_large, FIXED)
    assert refused.value.reason == "out_of_range"
    cut, count = fit_range(too_large, FIXED, on_outside="count")
    assert count == 1
    assert cut.modules["q"].b_OR.max() == 8.0
    with pytest.raises(BadUpdate, match=r"1 of 4 values"):
        FIXED.encode(B_OR * 3, np.random.default_rng(0))


@pytest.mark.parametrize("value", [8.0, -8.0, np.nextafter(8.0, 0), 0.0])
def test_c25_near_the_limits_from_inside(value: float) -> None:
    values = np.full((3, 3), value)
    assert out_of_range(values, 8.0) == 0
    encoded = FIXED.encode(values, np.random.default_rng(0))
    assert encoded.min() >= 0
    assert encoded.max() < FIXED.levels
    np.testing.assert_allclose(FIXED.decode_sum(encoded, 1), values, atol=FIXED.step)


@pytest.mark.parametrize("value", [np.nextafter(8.0, 9), -8.001, np.inf, -np.inf, np.nan])
def test_c25_near_the_limits_from_outside(value: float) -> None:
    assert out_of_range(np.array([value, 0.0]), 8.0) == 1
    with pytest.raises(BadUpdate, match=r"1 of 2 values"):
        FIXED.encode(np.array([value, 0.0]), np.random.default_rng(0))


def test_c25_what_is_not_finite_is_never_counted_away() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(BadUpdate, match=r"q B holds a value that is not finite"):
            fit_range(state_of(B_OR * np.float32(value)), FIXED, on_outside="count")


@given(
    clients=st.integers(1, 30), levels=st.integers(8, 1 << 20), seed=st.integers(0, 99),
)  # fmt: skip
def test_sums_come_back_though_they_wrap(clients: int, levels: int, seed: int) -> None:
    fixed = FixedPoint(clipping_range=2.0, levels=levels)
    rng = np.random.default_rng(seed)
    values = rng.uniform(-2, 2, (clients, 7))
    masks = rng.integers(0, fixed.modulus, (clients, 7))
    masks[-1] = -masks[:-1].sum(axis=0)  # masks cancel modulo the modulus
    total = sum(
        (fixed.encode(v, rng) + m) % fixed.modulus for v, m in zip(values, masks, strict=True)
    )
    np.testing.assert_allclose(
        fixed.decode_sum(np.asarray(total), clients), values.sum(axis=0),
        atol=clients * fixed.step,
    )  # fmt: skip


def test_rounding_is_right_on_average() -> None:
    fixed = FixedPoint(clipping_range=1.0, levels=4)
    values = np.full(60_000, 0.2)
    mean = fixed.decode_sum(fixed.encode(values, np.random.default_rng(1)), 1).mean()
    assert abs(mean - 0.2) < 5 * fixed.step / 2 / np.sqrt(values.size)


def test_more_updates_than_the_modulus_holds_are_refused() -> None:
    assert FIXED.max_clients == 1024
    FIXED.require_clients(1024)
    with pytest.raises(BadConfig, match=r"1025 updates .* can pass the modulus .*at most 1024"):
        FIXED.require_clients(1025)
    whole = np.full(3, FIXED.levels - 1, np.int64) * 1024
    np.testing.assert_allclose(FIXED.decode_sum(whole, 1024), 8.0 * 1024)


def test_terms_out_of_range_are_refused() -> None:
    for bad in (0.0, float("nan"), float("inf")):
        with pytest.raises(BadConfig, match=r"clipping range is"):
            FixedPoint(clipping_range=bad)
    with pytest.raises(BadConfig, match=r"levels do not fit below the modulus"):
        FixedPoint(levels=1 << 32)
