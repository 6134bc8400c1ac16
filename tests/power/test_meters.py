"""Meters on fake sysfs trees: which rails are summed, wraps, resets, rights, labels."""

# ruff: noqa: N802 - the fakes bear the names of the library

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig
from floe.power.base import Window
from floe.power.meters import rapl
from floe.power.meters.battery import battery_rails, charge_of
from floe.power.meters.hwmon import hwmon_rails
from floe.power.meters.meter import RailMeter
from floe.power.meters.nvml import load_nvml, nvml_rails
from floe.power.meters.probe import open_meter, sensors
from floe.power.meters.rails import CounterRail, PowerRail
from floe.power.meters.rapl import rapl_rails
from floe.testing.fake_sysfs import rapl_zone, supply_chip, write_tree

BOARD = {"VDD_IN": (5000, 3000), "VDD_CPU_GPU_CV": (5000, 1000), "VDD_SOC": (5000, 400)}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def window(meter: RailMeter, clock: Clock, seconds: float, then: Callable[[], None]) -> Window:
    mark = meter.begin()
    clock.now_s += seconds
    then()
    return meter.end(mark)


def over(found: tuple[list[Any], list[str], list[Any]], clock: Clock) -> RailMeter:
    return RailMeter(name="m", rails=found[0], counted=found[1], clock_s=clock, start=False)


def test_e01_the_module_input_is_the_sum_where_there_is_one(tmp_path: Path) -> None:
    supply_chip(tmp_path, BOARD)
    clock = Clock()
    got = window(over(hwmon_rails(tmp_path), clock), clock, 2.0, lambda: None)
    assert got.counted == ("ina3221 VDD_IN",)
    assert got.energy_j == pytest.approx(30.0) and got.label == "measured"
    assert {r.rail: r.energy_j for r in got.rails}["ina3221 VDD_SOC"] == pytest.approx(4.0)


def test_e01_without_a_module_input_all_rails_are_summed_and_named(tmp_path: Path) -> None:
    rails = {"VDD_GPU_SOC": (5000, 2000), "VDD_CPU_CV": (5000, 400), "VIN_SYS_5V0": (5000, 600)}
    supply_chip(tmp_path, rails)
    clock = Clock()
    got = window(over(hwmon_rails(tmp_path), clock), clock, 1.0, lambda: None)
    assert got.energy_j == pytest.approx(15.0)
    assert set(got.counted) == {f"ina3221 {label}" for label in rails}


def test_e04_chips_are_found_by_name_wherever_they_moved(tmp_path: Path) -> None:
    supply_chip(tmp_path, BOARD, number=7)
    write_tree(tmp_path, {"sys/class/hwmon/hwmon0/name": "acpitz"})
    assert [r.name for r in hwmon_rails(tmp_path)[0]] == [f"ina3221 {label}" for label in BOARD]


def test_e04_with_no_chip_it_says_what_was_searched(tmp_path: Path) -> None:
    rails, counted, found = hwmon_rails(tmp_path)
    assert not rails and not counted
    assert "ina3221" in found[0].reason and "hwmon" in found[0].place


def test_samples_are_summed_by_trapezoids(tmp_path: Path) -> None:
    chip, clock = supply_chip(tmp_path, {"VDD_IN": (5000, 2000)}), Clock()
    meter = over(hwmon_rails(tmp_path), clock)

    def rise() -> None:
        write_tree(chip, {"curr1_input": 4000})

    assert window(meter, clock, 2.0, rise).energy_j == pytest.approx((10 + 20) / 2 * 2)


def test_a_chip_with_an_energy_counter_is_not_sampled(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon2"
    write_tree(
        tmp_path,
        {
            f"{chip}/name": "xe",
            f"{chip}/energy1_input": 5_000_000,
            f"{chip}/energy1_label": "pkg",
            f"{chip}/power1_average": 9_000_000,
        },
    )
    clock = Clock()
    meter = over(hwmon_rails(tmp_path), clock)
    counter = tmp_path / chip
    got = window(meter, clock, 1.0, lambda: write_tree(counter, {"energy1_input": 6_500_000}))
    assert got.energy_j == pytest.approx(1.5) and got.counted == ("xe pkg",)


def test_an_amd_gpu_tells_its_average_power(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon2"
    files = {"name": "amdgpu", "power1_average": 9_000_000, "power1_input": 1, "power1_label": "P"}
    write_tree(tmp_path, {f"{chip}/{name}": value for name, value in files.items()})
    clock = Clock()
    got = window(over(hwmon_rails(tmp_path), clock), clock, 2.0, lambda: None)
    assert got.energy_j == pytest.approx(18.0) and got.counted == ("amdgpu P",)


@pytest.mark.parametrize("zone", ["intel-rapl:0", "intel-rapl/intel-rapl:0"])
def test_e14_both_layouts_are_found(tmp_path: Path, zone: str) -> None:
    folder = rapl_zone(tmp_path, zone, "package-0", 1_000_000)
    clock = Clock()
    meter = over(rapl_rails(tmp_path), clock)
    got = window(meter, clock, 1.0, lambda: write_tree(folder, {"energy_uj": 3_000_000}))
    assert got.energy_j == pytest.approx(2.0) and got.counted == ("rapl package-0",)


def test_e16_parts_and_mirrors_are_not_summed(tmp_path: Path) -> None:
    package = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 50_000_000)
    core = rapl_zone(tmp_path, "intel-rapl:0:0", "core", 20_000_000)
    psys = rapl_zone(tmp_path, "intel-rapl:1", "psys", 90_000_000)
    rapl_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 50_000_000)
    rapl_zone(tmp_path, "intel-rapl:2", "package-1", 50_000_100)
    clock = Clock()
    rails, counted, found = rapl_rails(tmp_path)

    def spend() -> None:
        for folder in (package, core, psys):
            write_tree(folder, {"energy_uj": 100_000_000})

    got = window(over((rails, counted, found), clock), clock, 10.0, spend)
    assert got.energy_j == pytest.approx(50.0) and got.counted == ("rapl package-0",)
    by_rail = {r.rail: r.energy_j for r in got.rails}
    assert by_rail["rapl package-0 core"] == pytest.approx(80.0)
    skipped = {s.place.rsplit("/", 1)[-1]: s.reason for s in found if not s.usable}
    assert "mirrors that of package-0" in skipped["intel-rapl:2"]
    assert "same name" in skipped["intel-rapl-mmio:0"]


def test_two_real_packages_are_summed(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 50_000_000)
    rapl_zone(tmp_path, "intel-rapl:1", "package-1", 70_000_000)
    assert rapl_rails(tmp_path)[1] == ["rapl package-0", "rapl package-1"]


def test_e08_e11_a_counter_for_root_only_is_said_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    monkeypatch.setattr(rapl.os, "access", lambda *_: False)
    rails, counted, found = rapl_rails(tmp_path)
    assert not rails and not counted
    assert found[0].reason == "unavailable: permission" and "chmod a+r" in found[0].todo
    meter = open_meter("rapl", root=tmp_path, start=False)
    got = meter.end(meter.begin())
    assert got.energy_j is None and got.label == "unknown"


@given(st.lists(st.integers(0, 900), max_size=20), st.integers(1_000, 5_000))
def test_a_counter_that_wraps_loses_nothing(steps: list[int], range_j: int) -> None:
    total, now = 0, 0.0

    def read() -> float:
        return float(total % range_j)

    rail = CounterRail(name="c", read_j=read, range_j=float(range_j))
    rail.tick(now)
    for step in steps:
        total += step
        now += 1.0
        rail.tick(now)
    assert rail.joules(now) == pytest.approx(sum(steps))


def test_a_counter_that_was_reset_is_unknown_once_and_known_again(tmp_path: Path) -> None:
    folder = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 200_000_000_000)
    clock = Clock()
    meter = over(rapl_rails(tmp_path), clock)
    got = window(meter, clock, 1.0, lambda: write_tree(folder, {"energy_uj": 0}))
    assert got.energy_j is None and got.label == "unknown"
    assert got.rails[0].reason == "the counter was reset"
    again = window(meter, clock, 1.0, lambda: write_tree(folder, {"energy_uj": 5_000_000}))
    assert again.energy_j == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: f.unlink(), "the sensor is gone"),
        (lambda f: f.write_text("n/a"), "gives no number"),
        (lambda f: (f.unlink(), f.mkdir()), "the sensor fails"),
    ],
)
def test_e02_a_sensor_that_vanishes_is_unknown_and_no_crash(
    tmp_path: Path, spoil: Callable[[Path], Any], reason: str
) -> None:
    folder, clock = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 5), Clock()
    meter = over(rapl_rails(tmp_path), clock)
    got = window(meter, clock, 1.0, lambda: spoil(folder / "energy_uj"))
    assert got.energy_j is None and reason in got.rails[0].reason


def test_a_modelled_rail_makes_the_sum_modelled() -> None:
    clock = Clock()
    rails = [
        PowerRail(name="a", read_w=lambda: 2.0),
        PowerRail(name="b", read_w=lambda: 3.0, label="modelled"),
    ]
    meter = RailMeter(name="m", rails=rails, counted=["a", "b"], clock_s=clock, start=False)
    got = window(meter, clock, 1.0, lambda: None)
    assert got.label == meter.label == "modelled" and got.energy_j == pytest.approx(5.0)


def test_windows_may_overlap(tmp_path: Path) -> None:
    supply_chip(tmp_path, BOARD)
    clock = Clock()
    meter = over(hwmon_rails(tmp_path), clock)
    outer = meter.begin()
    clock.now_s += 1.0
    inner = meter.begin()
    clock.now_s += 1.0
    assert meter.end(inner).energy_j == pytest.approx(15.0)
    assert meter.end(outer).energy_j == pytest.approx(30.0)
    with pytest.raises(TypeError, match=r"what begin\(\) gave"):
        meter.end("mark")


def test_a_thread_reads_between_the_ends(tmp_path: Path) -> None:
    read: list[float] = []

    def watts() -> float:
        read.append(1.0)
        return 1.0

    meter = RailMeter(
        name="m", rails=[PowerRail(name="a", read_w=watts, period_s=0.001)], counted=["a"]
    )
    mark = meter.begin()
    while len(read) < 5:
        pass
    got = meter.end(mark)
    meter.close()
    assert got.energy_j == pytest.approx(got.duration_s, rel=0.01)


def battery(root: Path, **changes: str | int) -> Path:
    files: dict[str, str | int | float] = {
        "type": "Battery", "status": "Discharging", "capacity": 55, "voltage_now": 12_000_000,
        "current_now": 500_000,
    }  # fmt: skip
    write_tree(root, {f"sys/class/power_supply/BAT0/{k}": v for k, v in (files | changes).items()})
    return root / "sys/class/power_supply/BAT0"


def test_a_battery_counts_off_the_mains_only(tmp_path: Path) -> None:
    folder, clock = battery(tmp_path), Clock()
    meter = over(battery_rails(tmp_path), clock)
    assert window(meter, clock, 2.0, lambda: None).energy_j == pytest.approx(12.0)
    assert charge_of(tmp_path) == pytest.approx(0.55)
    got = window(meter, clock, 1.0, lambda: write_tree(folder, {"status": "Charging"}))
    assert got.energy_j is None and "on mains" in got.rails[0].reason
    assert charge_of(tmp_path) is None


def test_a_battery_may_tell_its_power(tmp_path: Path) -> None:
    battery(tmp_path, power_now=7_000_000)
    clock = Clock()
    got = window(over(battery_rails(tmp_path), clock), clock, 1.0, lambda: None)
    assert got.energy_j == pytest.approx(7.0)


class FakeNvml:
    """As much of pynvml as the meter needs."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, counter: bool = True, power: bool = True) -> None:
        self.counter, self.power, self.energy_mj = counter, power, 1_000

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if not self.counter:
            raise self.NVMLError("Not Supported")
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if not self.power:
            raise self.NVMLError("Not Supported")
        return 20_000


def test_a_gpu_has_a_counter_or_power_or_neither() -> None:
    gpu, clock = FakeNvml(), Clock()
    meter = over(nvml_rails(lambda: (gpu, "")), clock)

    def spend() -> None:
        gpu.energy_mj += 4_500

    assert window(meter, clock, 1.0, spend).energy_j == pytest.approx(4.5)
    older = over(nvml_rails(lambda: (FakeNvml(counter=False), "")), clock)
    assert window(older, clock, 2.0, lambda: None).energy_j == pytest.approx(40.0)
    rails, counted, found = nvml_rails(lambda: (FakeNvml(counter=False, power=False), ""))
    assert not rails and not counted and "neither energy nor power" in found[0].reason


def test_e05_without_a_driver_or_package_the_gpu_is_only_reported() -> None:
    nvml, reason = load_nvml()
    if nvml is None:
        assert "driver" in reason or "not installed" in reason
    rails, _, found = nvml_rails(lambda: (None, "nvidia-ml-py is not installed"))
    assert not rails and "pip install" in found[0].todo


def test_auto_takes_the_boards_rails_before_its_parts(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    battery(tmp_path)
    assert open_meter(root=tmp_path, start=False).name == "rapl"
    supply_chip(tmp_path, BOARD)
    assert open_meter(root=tmp_path, start=False).name == "hwmon"
    assert {s.kind for s in sensors(tmp_path)} >= {"energy counter", "battery", "GPU"}


def test_auto_with_nothing_is_unknown_and_a_wrong_name_is_told(tmp_path: Path) -> None:
    meter = open_meter(root=tmp_path)
    assert meter.name == "none" and meter.label == "unknown"
    assert meter.end(meter.begin()).energy_j is None
    with pytest.raises(BadConfig, match=r"power\.meter must be one of auto"):
        open_meter("rappl", root=tmp_path)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "12 W"])
def test_what_is_no_finite_number_is_unknown_and_never_measured(tmp_path: Path, text: str) -> None:
    chip = supply_chip(tmp_path, {"VDD_IN": (5000, 1000)})
    rails, counted, _ = hwmon_rails(tmp_path)
    meter = RailMeter(name="hwmon", rails=rails, counted=counted, start=False)
    mark = meter.begin()
    (chip / "curr1_input").write_text(text)
    window = meter.end(mark)
    assert (window.label, window.energy_j) == ("unknown", None)
    assert window.rails[0].reason.startswith("the sensor gives no number: ")


def test_a_counter_that_grows_in_steps_is_not_taken_for_reset() -> None:
    # 700 W, added every 100 ms: two readings 5 ms apart may lie on both sides of a step
    read = iter([0.0, 70.0, 70.0])
    rail = CounterRail(name="gpu", read_j=lambda: next(read), range_j=None)
    rail.tick(0.0)
    assert rail.joules(0.005) == rail.joules(0.010) == 70.0
