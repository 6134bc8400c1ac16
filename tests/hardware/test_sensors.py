"""What `floe doctor` says of sensors, on machines that have them, and Zeus as a second opinion."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from floe.power.meters.probe import open_meter, sensors

SENSORS = {
    "sensor rapl": Path("/sys/class/powercap/intel-rapl:0/energy_uj"),
    "sensor battery": Path("/sys/class/power_supply/BAT0"),
    "clocks cpufreq": Path("/sys/devices/system/cpu/cpufreq/policy0"),
    "sensor gpu": Path("/dev/nvidiactl"),
}
BUSY_S = 3.0


@pytest.mark.hardware
@pytest.mark.parametrize("about", SENSORS)
def test_doctor_sees_the_sensor(about: str) -> None:
    if not SENSORS[about].exists():
        pytest.skip(f"this machine has no {about}: {SENSORS[about]} is absent")
    done = subprocess.run(
        [sys.executable, "-m", "floe", "doctor", "--json"], capture_output=True, text=True
    )
    lines = [entry for entry in json.loads(done.stdout) if entry["about"].startswith(about)]
    assert lines
    assert not any("no zone there" in e["found"] or "no battery there" in e["found"] for e in lines)


@pytest.mark.hardware
def test_zeus_measures_the_same() -> None:
    """Package energy of a busy stretch, by this meter and by ZeusMonitor, side by side."""
    if importlib.util.find_spec("zeus") is None:
        pytest.skip("the package zeus is not installed: pip install zeus")
    usable = [s for s in sensors() if s.usable]
    kinds = [k for k in ("gpu", "rapl package") if any(s.name.startswith(k) for s in usable)]
    if not kinds:
        pytest.skip("this machine has neither a readable GPU nor RAPL counters for Zeus to read")
    zeus = importlib.import_module("zeus.monitor")
    monitor = zeus.ZeusMonitor()
    meter = open_meter("nvml" if kinds[0] == "gpu" else "rapl")
    monitor.begin_window("busy")
    mark = meter.begin()
    until_s = time.monotonic() + BUSY_S
    while time.monotonic() < until_s:
        sum(range(10_000))
    window = meter.end(mark)
    told = monitor.end_window("busy")
    meter.close()
    theirs = told.gpu_energy if kinds[0] == "gpu" else told.cpu_energy
    assert theirs, "Zeus gave no energy for a sensor that is readable here"
    assert window.energy_j == pytest.approx(sum(theirs.values()), rel=0.1)
    assert window.label == "measured"
