"""The LoRA unit: its formulas beside plain ones, the calibrated row exact, the other one near."""

from __future__ import annotations

import numpy as np
import pytest

from floe.power.boards import accelerator
from floe.power.boards.accelerator import (
    CALIBRATED_ON,
    LLAMA_7B,
    TABLE_3,
    UNIT,
    Shape,
    accelerated,
    calibration,
    ratios,
    unit_watts,
)
from floe.power.boards.jetson import orin_nano
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.policy import blank
from floe.power.simulate import simulate
from floe.power.workload import workload


def test_it_is_calibrated_on_one_row_and_near_the_other() -> None:
    own, other = ratios(CALIBRATED_ON), ratios("orin-nx")
    assert CALIBRATED_ON == "orin-nano" and set(TABLE_3) == {"orin-nano", "orin-nx"}
    assert own.time_error == pytest.approx(0) and own.energy_error == pytest.approx(0)
    assert own.time == pytest.approx(392.15 / 552.18) and own.energy == pytest.approx(3.54 / 5.56)
    assert 0 < abs(other.time_error) <= 0.15 and 0 < abs(other.energy_error) <= 0.15
    assert other.time_published == pytest.approx(322.76 / 462.72)
    assert 0 < calibration().taken < 1 and 0 < calibration().power < 1


def test_macs_and_bytes_beside_a_count_by_module() -> None:
    shape = Shape(layers=2, width=10, hidden=30, rank=4, kv_width=5)
    modules = [(10, 10), (10, 5), (10, 5), (10, 10), (10, 30), (10, 30), (30, 10)]
    assert shape.macs == 2 * sum(4 * (a + b) for a, b in modules)
    assert shape.bytes_moved == 2 * 2 * 2 * 10
    assert LLAMA_7B.macs == pytest.approx(20e6, rel=0.01)


def test_a_step_is_what_stays_the_link_and_what_the_unit_cannot_hide() -> None:
    how = accelerator.Calibration(taken=0.4, power=0.9)
    made = accelerator._step_ms(100.0, LLAMA_7B, 50, how)
    for k, mhz in enumerate(UNIT.steps_mhz):
        pcie_s = LLAMA_7B.bytes_moved * 50 / (4 * 8e9 * 128 / 130 / 8 * 0.85)
        axi_s = LLAMA_7B.bytes_moved * 50 / (16 * mhz * 1e6)
        unit_s = LLAMA_7B.macs * 50 / (256 * mhz * 1e6)
        wanted = 0.060 + pcie_s + axi_s + max(0.0, unit_s - 0.060)
        assert float(made[k]) == pytest.approx(1000 * wanted)


def test_the_units_power_rises_with_its_clock_from_leakage_up() -> None:
    watts = unit_watts()
    assert (np.diff(watts) > 0).all()
    assert float(watts[-1]) == pytest.approx(0.15)
    assert float(watts[0]) == pytest.approx(0.01 + 0.14 * (0.6 / 0.9) ** 2 * 0.2)


@pytest.mark.parametrize("board", ["orin-nano", "orin-nx"])
def test_it_is_a_board_like_any_other_and_changes_pay_at_every_layer(board: str) -> None:
    made = accelerated(board)
    model, facts = made.model, made.model.board.facts
    assert made.latency_mape is None and made.notes["calibrated_on"] == "orin-nano"
    assert (
        float(facts["switch_share_of_layer"]) < 0.001 < float(facts["jetson_switch_share_of_layer"])
    )
    jobs = workload(model, n=20, part="train", seed=1)
    run = simulate(model, Learned(model, blank(N_FEATURES, 4, N_OUTPUTS)), jobs)
    assert run.violation_ttft == run.violation_tpot == 0.0 and run.switches > 0


def test_serving_with_the_unit_is_faster_and_cheaper_than_without() -> None:
    soft, unit = orin_nano().model, accelerated("orin-nano").model
    fast = soft.fastest
    assert float(unit.decode_ms(64).min()) < float(soft.decode_ms(64)[fast])
    assert float(unit.decode_w_S[-1]) < float(soft.decode_w_S[fast])
