"""GPU and memory clocks of boards: devfreq, and the Jetson's memory clock beside it.

devfreq counts in Hz (Documentation/ABI/testing/sysfs-class-devfreq). A Jetson's memory clock has
no devfreq entry that can be set: it is locked through the boot processor's debug files.
"""

from __future__ import annotations

from pathlib import Path

from floe.power.base import Domain
from floe.power.knobs.files import FileClock, FileKnobs, steps_of
from floe.power.meters.files import number_of, text_or

_HZ = 1e6
_GPU_NAMES = ("gpu", "gv11b", "ga10b", "gp10b", "gm20b", "mali", "g3d")
_MEMORY_NAMES = ("emc", "dmc", "memory", "ddr")
_LEAST_STEPS = 2


def devfreq_clocks(root: Path = Path("/")) -> list[FileClock]:
    """The GPU's and the memory's clocks under `root`, found by what devices call themselves."""
    clocks: list[FileClock] = []
    for device in sorted((root / "sys/class/devfreq").glob("*")):
        name = f"{device.name} {text_or(device / 'name', '')}".lower()
        domain = _domain_of(name)
        if domain and not any(c.domain.name == domain for c in clocks):
            clock = _clock(device, domain)
            if clock is not None:
                clocks.append(clock)
    memory = _jetson_memory(root)
    if memory is not None and not any(c.domain.name == "emc" for c in clocks):
        clocks.append(memory)
    return clocks


def devfreq_knobs(root: Path = Path("/")) -> FileKnobs:
    """The board's knobs."""
    return FileKnobs(name="devfreq", clocks=devfreq_clocks(root))


def _domain_of(name: str) -> str:
    if any(part in name for part in _GPU_NAMES):
        return "gpu"
    return "emc" if any(part in name for part in _MEMORY_NAMES) else ""


def _clock(device: Path, domain: str) -> FileClock | None:
    try:
        steps = steps_of(text_or(device / "available_frequencies", ""), _HZ)
    except ValueError:
        return None
    if len(steps) < _LEAST_STEPS:
        return None
    return FileClock(
        domain=Domain(name=domain, steps_mhz=steps),
        low=device / "min_freq",
        high=device / "max_freq",
        current=device / "cur_freq",
        per_mhz=_HZ,
    )


def _jetson_memory(root: Path) -> FileClock | None:
    """One rate file under a lock: it is both bounds and the current value."""
    emc = root / "sys/kernel/debug/bpmp/debug/clk/emc"
    try:
        low, high = number_of(emc / "min_rate") / _HZ, number_of(emc / "max_rate") / _HZ
    except (OSError, ValueError):
        return None
    return FileClock(
        domain=Domain(name="emc", steps_mhz=(low, high), is_continuous=True),
        low=emc / "rate",
        high=emc / "rate",
        current=emc / "rate",
        per_mhz=_HZ,
        mode=emc / "mrq_rate_locked",
        mode_value="1",
    )
