"""What `floe doctor` says of sensors, on machines that have them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SENSORS = {
    "energy (RAPL)": Path("/sys/class/powercap/intel-rapl:0/energy_uj"),
    "battery": Path("/sys/class/power_supply/BAT0"),
    "clocks (cpufreq)": Path("/sys/devices/system/cpu/cpu0/cpufreq"),
    "GPU (NVML)": Path("/dev/nvidiactl"),
}


@pytest.mark.hardware
@pytest.mark.parametrize("about", SENSORS)
def test_doctor_sees_the_sensor(about: str) -> None:
    if not SENSORS[about].exists():
        pytest.skip(f"this machine has no {about}: {SENSORS[about]} is absent")
    done = subprocess.run(
        [sys.executable, "-m", "floe", "doctor", "--json"], capture_output=True, text=True
    )
    line = next(entry for entry in json.loads(done.stdout) if entry["about"] == about)
    assert line["found"] != "none here"
