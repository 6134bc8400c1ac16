"""Board models: how well they fit, each formula beside a plain twin, and what must be monotone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig
from floe.power.base import Domain
from floe.power.boards import gpu_limit, jetson, odroid
from floe.power.boards.catalogue import BOARDS, fitted
from floe.power.boards.data import measurements
from floe.power.boards.leastsq import fit, mape
from floe.power.boards.model import Thermal, grid

CHECKED = ("orin-nano-super", "odroid-xu3", "a40", "v100")


@pytest.mark.parametrize("name", CHECKED)
def test_held_out_rows_fit_within_eight_percent(name: str) -> None:
    board = fitted(name)
    assert board.latency_mape is not None and 0 < board.latency_mape <= 0.08
    assert board.power_mape is not None and 0 < board.power_mape <= 0.08
    assert board.notes["source"]


def test_a_board_without_rows_of_its_own_claims_no_fit() -> None:
    assert fitted("orin-nx").latency_mape is None and fitted("orin-nx").power_mape is None
    with pytest.raises(BadConfig, match="no board 'orin'; known: orin-nano-super, orin-nx"):
        fitted("orin")


@pytest.mark.parametrize("name", BOARDS)
def test_figures_are_finite_positive_and_modelled(name: str) -> None:
    model = fitted(name).model
    assert model.board.label == "modelled" and model.n_settings == len(model.settings_SD)
    tables = [model.prefill_ms(1), model.prefill_ms(2000), model.decode_ms(0)]
    tables += [model.prefill_w_S, model.decode_w_S, model.idle_w_S]
    for table_S in tables:
        assert table_S.shape == (model.n_settings,)
        assert np.isfinite(table_S).all() and (table_S > 0).all()
    assert (model.idle_w_S <= model.decode_w_S + 1e-9).all()


@pytest.mark.parametrize("name", BOARDS)
def test_longer_is_never_faster_and_no_higher_clock_is_slower(name: str) -> None:
    model = fitted(name).model
    for times in (model.prefill_ms, model.decode_ms):
        made = np.stack([times(n) for n in (1, 8, 64, 512, 513, 2048)])
        assert (np.diff(made, axis=0) >= -1e-9).all()
        for k in range(model.settings_SD.shape[1]):
            for s, t in _neighbours(model.settings_SD, k):
                assert (made[:, t] <= made[:, s] + 1e-9).all()
    assert model.fastest == int(np.argmin(model.decode_ms(0)))


def _neighbours(settings_SD: np.ndarray, k: int) -> list[tuple[int, int]]:
    """Pairs that differ in domain k alone, the lower first."""
    return [
        (s, t)
        for s in range(len(settings_SD))
        for t in range(len(settings_SD))
        if settings_SD[s, k] < settings_SD[t, k]
        and (np.delete(settings_SD[s], k) == np.delete(settings_SD[t], k)).all()
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_settings_and_clocks_go_back_and_forth(name: str) -> None:
    model = fitted(name).model
    for s in range(model.n_settings):
        clocks = model.clocks(s)
        assert model.index_of(clocks) == s
        near = {k: v * 1.001 for k, v in clocks.items()}
        assert model.index_of(near) == s
    assert model.index_of({}) == model.index_of(
        {d.name: d.steps_mhz[-1] for d in model.board.domains}
    )
    given_out = model.clocks(0)
    given_out.clear()
    assert model.clocks(0)


def test_the_grid_has_every_combination_once() -> None:
    domains = (Domain(name="a", steps_mhz=(1, 2, 3)), Domain(name="b", steps_mhz=(5, 7)))
    made = grid(domains)
    assert made.tolist() == [[a, b] for a in (1, 2, 3) for b in (5, 7)]


POSITIVE = st.floats(0.1, 100.0)


@given(POSITIVE, POSITIVE, st.floats(1.0, 8.0), st.floats(100, 3000), st.floats(100, 3000))
def test_the_roofline_beside_its_formula(
    a: float, b: float, q: float, gpu: float, emc: float
) -> None:
    made = jetson._Roofline(compute=a, memory=b, sharpness=q)
    slow = math.exp(math.log((a / gpu) ** q + (2 * b / emc) ** q) / q)
    assert float(made.ms(np.array([gpu]), np.array([emc]), memory=2.0)[0]) == pytest.approx(slow)
    assert slow >= max(a / gpu, 2 * b / emc) * (1 - 1e-9)  # never below either roof


def test_jetson_power_beside_its_formula() -> None:
    model = fitted("orin-nano-super").model
    told = measurements("orin_nano")["slm"]
    gpu, emc = (np.array([run[k] for run in told], float) for k in ("gpu_mhz", "emc_mhz"))
    decode = jetson._roofline(gpu, emc, np.array([np.median(r["decode_ms"]) for r in told]))
    p, _, _ = jetson._power(measurements("orin_nano")["power"], decode)
    for s in (0, 13, 31):
        f, m = model.settings_SD[s]
        ms = float(model.decode_ms(0)[s])
        watts = p[0] + p[1] * m / 1000 + p[2] * f / 1000
        watts += decode.compute / f / ms * p[3] * (f / 1000) ** 3 + p[4] * decode.memory / ms / 1e4
        assert float(model.decode_w_S[s]) == pytest.approx(watts)


def test_odroid_time_and_power_beside_their_formulas() -> None:
    rows = [r for r in measurements("odroid_xu3")["rows"] if (r[0], r[2]) == odroid._DECODE]
    s = odroid._waits(rows)

    def slow(ghz: float) -> float:
        return (1 - s) / ghz + s

    def seconds(mhz: int) -> float:
        times = [r[5] for r in rows if r[3] == mhz]
        return sum(times) / len(times)

    low, high = min(r[3] for r in rows), max(r[3] for r in rows)
    assert slow(low / 1000) / slow(high / 1000) == pytest.approx(seconds(low) / seconds(high))
    model = fitted("odroid-xu3").model
    times = [slow(f / 1000) / slow(2.0) * 90.0 for f in odroid.CPU.steps_mhz]
    assert model.decode_ms(0).tolist() == pytest.approx(times)


def test_a_power_limit_is_never_exceeded_and_slows_when_low() -> None:
    for name in ("a40", "v100"):
        model = fitted(name).model
        limits = model.settings_SD[:, 0]
        assert (model.prefill_w_S <= limits).all() and (model.decode_w_S <= limits).all()
        assert (np.diff(model.prefill_w_S) > 0).all()
    shape = gpu_limit._Shape(time_K=np.array([60.0, 40.0, 2.0]), power_K=np.array([250.0, 4.0]))
    assert float(shape.slower(np.array([160.0]))[0]) == pytest.approx(1 + (60 / 120) ** 2)
    assert float(shape.watts(np.array([200.0]))[0]) == pytest.approx(
        (200.0**-4 + 250.0**-4) ** -0.25
    )


@given(st.floats(0.0, 90.0), st.floats(0.0, 30.0), st.floats(0.0, 300.0))
def test_the_thermal_mass_beside_small_steps(start_c: float, watts: float, seconds: float) -> None:
    thermal = Thermal(ambient_c=25.0, resistance_c_per_w=1.5, time_constant_s=60.0)
    steps, slow = 4000, start_c
    for _ in range(steps):
        slow += (25.0 + 1.5 * watts - slow) / 60.0 * seconds / steps
    assert thermal.after(start_c, watts, seconds) == pytest.approx(slow, abs=0.1)


def test_a_perturbed_board_is_another_one_and_leaves_the_first_alone() -> None:
    model = fitted("odroid-xu3").model
    before = model.decode_ms(7).copy()
    other = model.perturbed(static=1.3, slower_memory=1.25)
    assert other.decode_ms(7).tolist() == pytest.approx((1.25 * before).tolist())
    extra = other.idle_w_S - model.idle_w_S
    assert extra.tolist() == pytest.approx([0.3 * float(model.idle_w_S.min())] * model.n_settings)
    assert (other.decode_w_S - model.decode_w_S).tolist() == pytest.approx(extra.tolist())
    assert model.decode_ms(7).tolist() == before.tolist() and other.board.name == "perturbed"


def test_least_squares_finds_what_made_the_data() -> None:
    x = np.linspace(1.0, 5.0, 30)
    y = 3.0 * x**0.7

    def residuals(p: np.ndarray) -> np.ndarray:
        return p[0] * x ** p[1] - y

    assert fit(residuals, np.array([1.0, 1.5])).tolist() == pytest.approx([3.0, 0.7], rel=1e-5)
    assert mape(np.array([2.0, 4.0]), np.array([1.0, 5.0])) == pytest.approx((0.5 + 0.25) / 2)
