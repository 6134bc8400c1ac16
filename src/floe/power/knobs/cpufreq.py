"""CPU clocks through cpufreq: one policy per cluster, all moved together.

Files and units (kHz) are those of the kernel's Documentation/admin-guide/pm/cpufreq. Drivers
without a list of frequencies (intel_pstate) take any between their bounds.
"""

from __future__ import annotations

from pathlib import Path

from floe.power.base import Domain
from floe.power.knobs.files import FileClock, FileKnobs, steps_of
from floe.power.meters.files import number_of, text_or

_KHZ = 1000.0


def cpufreq_clocks(root: Path = Path("/")) -> list[FileClock]:
    """The clocks of every policy under `root` that has readable bounds."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    found = [_clock(policy) for policy in sorted(folder.glob("policy*"))]
    return [clock for clock in found if clock is not None]


def cpufreq_knobs(root: Path = Path("/")) -> FileKnobs:
    """The CPU's knobs."""
    return FileKnobs(name="cpufreq", clocks=cpufreq_clocks(root))


def _clock(policy: Path) -> FileClock | None:
    listed = text_or(policy / "scaling_available_frequencies", "")
    try:
        bounds = (number_of(policy / "cpuinfo_min_freq"), number_of(policy / "cpuinfo_max_freq"))
        steps = steps_of(listed, _KHZ) or tuple(b / _KHZ for b in bounds)
    except (OSError, ValueError):
        return None
    return FileClock(
        domain=Domain(name="cpu", steps_mhz=steps, is_continuous=not listed),
        low=policy / "scaling_min_freq",
        high=policy / "scaling_max_freq",
        current=policy / "scaling_cur_freq",
        per_mhz=_KHZ,
    )
