"""When a device may train, from the kernel's files in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from floe.core.errors import BadConfig, Busy
from floe.core.sections import FederatedConfig
from floe.federated.conditions import Conditions, Limits, Sensors, limits_of
from floe.testing.fake_sysfs import write_tree


@pytest.fixture
def sensors(tmp_path: Path) -> Sensors:
    write_tree(
        tmp_path,
        {
            "power/BAT0/type": "Battery",
            "power/BAT0/capacity": 40,
            "power/mouse/type": "Battery",
            "power/mouse/scope": "Device",
            "power/mouse/capacity": 3,
            "power/AC/type": "Mains",
            "power/AC/online": 0,
            "thermal/thermal_zone0/temp": 41000,
            "thermal/thermal_zone1/temp": 67500,
            "thermal/cooling_device0/temp": 99000,
            "loadavg": "3.00 1.00 0.50 1/200 999",
        },
    )
    return Sensors(
        power_supply=tmp_path / "power",
        thermal=tmp_path / "thermal",
        loadavg=tmp_path / "loadavg",
        n_cores=4,
    )


def obstacle(sensors: Sensors, **limits: object) -> str | None:
    return Conditions(limits=Limits(**limits), sensors=sensors).obstacle()  # type: ignore[arg-type]


def test_readings_are_the_devices_own(sensors: Sensors) -> None:
    assert sensors.battery_percent() == 40.0
    assert not sensors.is_on_mains()
    assert sensors.celsius() == 67.5
    assert sensors.load() == 0.75


def test_each_limit_names_itself(sensors: Sensors) -> None:
    assert obstacle(sensors) is None
    assert obstacle(sensors, on_mains=True) == "the device runs on its battery"
    assert obstacle(sensors, min_battery_percent=50) == "the battery is at 40 %, below 50 %"
    assert obstacle(sensors, min_battery_percent=40) is None
    assert obstacle(sensors, max_celsius=60) == "the device is at 68 degrees Celsius, above 60"
    assert obstacle(sensors, max_celsius=70) is None
    # 3.0 on 4 cores are 0.75 a core, 0.25 of them our own thread.
    assert obstacle(sensors, max_load=0.4) == "other processes load a core by 0.50, above 0.40"
    assert obstacle(sensors, max_load=0.5) is None


def test_a_charger_ends_the_battery_limit_of_mains(sensors: Sensors) -> None:
    write_tree(sensors.power_supply, {"AC/online": 1})
    assert obstacle(sensors, on_mains=True) is None


def test_a_machine_without_a_battery_is_on_mains(tmp_path: Path) -> None:
    bare = Sensors(
        power_supply=tmp_path / "no", thermal=tmp_path / "no", loadavg=tmp_path / "no", n_cores=1
    )
    assert bare.is_on_mains()
    assert bare.battery_percent() is None
    assert obstacle(bare, on_mains=True, min_battery_percent=90) is None


def test_a_limit_that_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    bare = Sensors(
        power_supply=tmp_path / "no", thermal=tmp_path / "no", loadavg=tmp_path / "no", n_cores=1
    )
    with pytest.raises(BadConfig, match=r"max_celsius is set, but .* shows no temperature"):
        Conditions(limits=Limits(max_celsius=50), sensors=bare)
    with pytest.raises(BadConfig, match=r"max_load is set, but .* cannot be read"):
        Conditions(limits=Limits(max_load=1), sensors=bare)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_c11_limits_are_numbers(value: float) -> None:
    with pytest.raises(BadConfig, match="max_celsius must be a number of 0 or more"):
        Limits(max_celsius=value)
    with pytest.raises(BadConfig, match="at most 100"):
        Limits(min_battery_percent=101)


def test_patience_is_a_number(sensors: Sensors) -> None:
    with pytest.raises(BadConfig, match="patience_s must be a number of 0 or more"):
        Conditions(limits=Limits(), sensors=sensors, patience_s=float("nan"))


def test_odd_contents_count_as_no_reading(sensors: Sensors) -> None:
    write_tree(sensors.power_supply, {"BAT0/capacity": "unknown"})
    assert sensors.battery_percent() is None
    (sensors.thermal / "thermal_zone1" / "temp").write_bytes(b"\xff\xfe")
    assert sensors.celsius() == 41.0


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.naps = 0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.naps += 1


def test_waiting_goes_on_when_the_obstacle_is_gone(sensors: Sensors) -> None:
    clock, told = Clock(), []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.naps == 2:
            write_tree(sensors.power_supply, {"BAT0/capacity": 80})

    conditions = Conditions(
        limits=Limits(min_battery_percent=50), sensors=sensors, clock=clock, sleep=sleep
    )
    assert conditions.wait(told.append) == 10.0
    assert told == ["the battery is at 40 %, below 50 %"]
    assert conditions.wait(told.append) == 0.0


def test_waiting_ends_with_the_reason(sensors: Sensors) -> None:
    clock = Clock()
    conditions = Conditions(
        limits=Limits(on_mains=True), sensors=sensors, patience_s=12.0, clock=clock,
        sleep=clock.sleep,
    )  # fmt: skip
    with pytest.raises(Busy, match="stopped after waiting 15 s: the device runs on its battery"):
        conditions.wait()


def test_a_table_asks_nothing_where_it_says_0() -> None:
    assert limits_of(FederatedConfig()) == Limits()
    strict = FederatedConfig(
        min_battery_percent=40.0, on_mains=True, max_celsius=70.0, max_load=0.5
    )
    assert limits_of(strict) == Limits(
        min_battery_percent=40.0, on_mains=True, max_celsius=70.0, max_load=0.5
    )
