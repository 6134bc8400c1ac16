"""The best meter this machine has, and every sensor that was looked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from floe.core.errors import BadConfig
from floe.power.base import SensorStatus
from floe.power.meters.battery import battery_rails
from floe.power.meters.hwmon import hwmon_rails, is_supply
from floe.power.meters.meter import RailMeter
from floe.power.meters.nvml import nvml_rails
from floe.power.meters.rails import Rail
from floe.power.meters.rapl import rapl_rails

Found = tuple[list[Rail], list[str], list[SensorStatus]]
NAMES = ("auto", "hwmon", "rapl", "nvml", "battery", "none")


def sensors(root: Path = Path("/")) -> tuple[SensorStatus, ...]:
    """Every sensor that was looked for, in the order of use."""
    return tuple(status for _, probe in _probes(root) for status in probe()[2])


def open_meter(name: str = "auto", *, root: Path = Path("/"), start: bool = True) -> RailMeter:
    """The named meter; auto = a board's own rails, else CPU and GPU counters, else the battery.

    CPU and GPUs are summed when they are there. With no sensor at all every window is unknown.

    Raises:
        BadConfig: no such meter.
    """
    if name not in NAMES:
        raise BadConfig(f"power.meter must be one of {', '.join(NAMES)}", param="power.meter")
    if name == "none":
        return RailMeter(name="none", rails=(), counted=(), start=False)
    probes = dict(_probes(root))
    if name != "auto":
        rails, counted, _ = probes[name]()
        return RailMeter(name=name, rails=rails, counted=counted, start=start)
    for group in _groups(probes["hwmon"]()):
        found = [probes[one]() for one in group]
        counted = [c for _, names, _ in found for c in names]
        if counted:
            rails = [rail for some, _, _ in found for rail in some]
            used = "+".join(g for g, f in zip(group, found, strict=True) if f[1])
            return RailMeter(name=used, rails=rails, counted=counted, start=start)
    return RailMeter(name="none", rails=(), counted=(), start=False)


def _groups(hwmon: Found) -> tuple[tuple[str, ...], ...]:
    """What is summed together, best first: a board's supply rails hold its CPU and GPU."""
    if any(is_supply(name) for name in hwmon[1]):
        return (("hwmon",),)
    return (("rapl", "nvml", "hwmon"), ("battery",))


def _probes(root: Path) -> tuple[tuple[str, Callable[[], Found]], ...]:
    return (
        ("hwmon", lambda: hwmon_rails(root)),
        ("rapl", lambda: rapl_rails(root)),
        ("nvml", nvml_rails),
        ("battery", lambda: battery_rails(root)),
    )
