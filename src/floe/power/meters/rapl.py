"""Intel's and AMD's energy counters, through powercap.

A zone holds `name`, `energy_uj` and `max_energy_range_uj` (Documentation/power/powercap of the
kernel). Two layouts are in use, nested below the control type and flat in the class folder
(bug-log E14); both are looked at. Only top zones are summed: a core is part of its package, and
psys holds them all (bug-log E16).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from floe.power.base import SensorStatus
from floe.power.meters.files import number_of, text_or
from floe.power.meters.rails import CounterRail, Rail

_FIX = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj (until the next boot)"
_UJ = 1e-6
_SAME_J = 0.5  # two packages of their own are as near by one chance in 100,000


def rapl_rails(root: Path = Path("/")) -> tuple[list[Rail], list[str], list[SensorStatus]]:
    """Rails, the names of those to sum, and what was found under `root`."""
    rails: list[Rail] = []
    counted: list[str] = []
    found: list[SensorStatus] = []
    packages: dict[str, Path] = {}
    for zone in _zones(root / "sys/class/powercap"):
        name, is_top = _name(zone), zone.name.count(":") == 1
        reason = _fault(zone)
        if not reason and is_top:
            reason = _mirror(zone, name, packages)
        found.append(
            SensorStatus(
                name=f"rapl {name}", kind="energy counter", place=str(zone), usable=not reason,
                reason=reason, todo=_FIX if reason.startswith("unavailable") else "",
            )
        )  # fmt: skip
        if reason:
            continue
        rails.append(_rail(zone, f"rapl {name}"))
        if is_top and name.startswith("package"):
            packages[name] = zone
            counted.append(f"rapl {name}")
    if not found:
        found.append(
            SensorStatus(
                name="rapl", kind="energy counter", usable=False,
                place=str(root / "sys/class/powercap"), reason="no zone there",
            )
        )  # fmt: skip
    return rails, counted, found


def _zones(folder: Path) -> Iterator[Path]:
    """Every zone once, whatever the layout; the MSR ones before their MMIO mirrors."""
    seen: set[Path] = set()
    places = [*folder.glob("intel-rapl*:*"), *folder.glob("intel-rapl*/intel-rapl*:*")]
    places += [*folder.glob("intel-rapl*/*/intel-rapl*:*:*")]
    for zone in sorted(places, key=lambda p: (p.name.startswith("intel-rapl-mmio"), p.name)):
        real = zone.resolve()
        if real not in seen and (zone / "energy_uj").exists():
            seen.add(real)
            yield zone


def _name(zone: Path) -> str:
    """The zone's name; a part bears its package's name in front."""
    own = text_or(zone / "name", zone.name)
    if zone.name.count(":") < 2:
        return own
    top = zone.name.rsplit(":", 1)[0]
    parents = (zone.parent / top, zone.parent)
    named = next((p for p in parents if p.name == top and (p / "name").exists()), None)
    return f"{text_or(named / 'name', top) if named else top} {own}"


def _mirror(zone: Path, name: str, packages: dict[str, Path]) -> str:
    """Whether the zone repeats one that is counted: by its name, or by the very same series."""
    if name in packages:
        return "it mirrors a zone of the same name"  # the MMIO copy of a package
    for other, place in packages.items() if name.startswith("package") else ():
        if abs(_read_j(zone) - _read_j(place)) < _SAME_J:
            return f"its counter mirrors that of {other}"
    return ""


def _read_j(zone: Path) -> float:
    try:
        return number_of(zone / "energy_uj") * _UJ
    except (OSError, ValueError):
        return float("nan")  # equal to nothing


def _fault(zone: Path) -> str:
    if not os.access(zone / "energy_uj", os.R_OK):
        return "unavailable: permission"
    return ""


def _rail(zone: Path, name: str) -> CounterRail:
    try:
        range_j: float | None = number_of(zone / "max_energy_range_uj") * _UJ
    except (OSError, ValueError):
        range_j = None  # a wrap then shows as a reset, never as a figure
    return CounterRail(
        name=name, read_j=lambda: number_of(zone / "energy_uj") * _UJ, range_j=range_j
    )
