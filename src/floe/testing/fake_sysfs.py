"""A sysfs of small files in a folder: boards, sensors and clocks that are not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_tree(root: Path, files: Mapping[str, str | int | float]) -> None:
    """Write each value below `root`; a name is a path as in the real sysfs."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")


def cpu_policy(root: Path, number: int = 0, *, listed: bool = True) -> Path:
    """A cpufreq policy with four steps, all allowed. Returns its folder."""
    folder = f"sys/devices/system/cpu/cpufreq/policy{number}"
    files: dict[str, str | int | float] = {
        "cpuinfo_min_freq": 600_000,
        "cpuinfo_max_freq": 1_500_000,
        "scaling_min_freq": 600_000,
        "scaling_max_freq": 1_500_000,
        "scaling_cur_freq": 1_200_000,
        "scaling_governor": "schedutil",
    }
    if listed:
        files["scaling_available_frequencies"] = "600000 900000 1200000 1500000"
    write_tree(root, {f"{folder}/{name}": value for name, value in files.items()})
    return root / folder


def devfreq_gpu(root: Path, name: str = "17000000.gpu") -> Path:
    """A Jetson-like GPU with three steps. Returns its folder."""
    folder = f"sys/class/devfreq/{name}"
    write_tree(
        root,
        {
            f"{folder}/available_frequencies": "306000000 612000000 1020000000",
            f"{folder}/min_freq": 306000000,
            f"{folder}/max_freq": 1020000000,
            f"{folder}/cur_freq": 612000000,
        },
    )
    return root / folder


def jetson_memory(root: Path) -> Path:
    """A Jetson's memory clock. Returns its folder."""
    folder = "sys/kernel/debug/bpmp/debug/clk/emc"
    write_tree(
        root,
        {
            f"{folder}/min_rate": 204000000,
            f"{folder}/max_rate": 3199000000,
            f"{folder}/rate": 2133000000,
            f"{folder}/mrq_rate_locked": 0,
        },
    )
    return root / folder


def supply_chip(root: Path, rails: Mapping[str, tuple[int, int]], *, number: int = 1) -> Path:
    """An INA3221 with rails by label: (millivolt, milliampere). Returns its folder."""
    folder = f"sys/class/hwmon/hwmon{number}"
    files: dict[str, str | int | float] = {f"{folder}/name": "ina3221"}
    for n, (label, (millivolt, milliampere)) in enumerate(rails.items(), start=1):
        files[f"{folder}/in{n}_label"] = label
        files[f"{folder}/in{n}_input"] = millivolt
        files[f"{folder}/curr{n}_input"] = milliampere
    write_tree(root, files)
    return root / folder


def rapl_zone(
    root: Path, zone: str, name: str, energy_uj: int, *, range_uj: int = 262_143_328_850
) -> Path:
    """A powercap zone below the class folder, by its path there. Returns its folder."""
    folder = f"sys/class/powercap/{zone}"
    write_tree(
        root,
        {
            f"{folder}/name": name,
            f"{folder}/energy_uj": energy_uj,
            f"{folder}/max_energy_range_uj": range_uj,
        },
    )
    return root / folder
