"""Temperatures: thermal zones by what they call themselves, and hwmon chips.

Zones and units (thousandths of a degree) are those of the kernel's Documentation/driver-api/
thermal/sysfs-api. Chips that only repeat a zone (hwmon "thermal") do not exist as such: a name
that comes twice is the hotter of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from floe.power.base import SensorStatus
from floe.power.meters.files import number_of, text_or

_CHIPS = ("coretemp", "k10temp", "zenpower", "amdgpu", "nvme", "cpu_thermal", "soc_thermal")
_MOST_C = 200.0


def temperatures(root: Path = Path("/")) -> dict[str, float]:
    """Degrees Celsius by sensor, as they are now; what cannot be read or is absurd is left out."""
    out: dict[str, float] = {}
    for name, file in _places(root):
        try:
            degrees = number_of(file) / 1000
        except (OSError, ValueError):
            continue
        if -60.0 < degrees < _MOST_C:  # absent sensors read as -256 or 0xffff
            out[name] = max(degrees, out.get(name, degrees))
    return out


def thermal_sensors(root: Path = Path("/")) -> tuple[SensorStatus, ...]:
    """Every temperature that was looked for."""
    now = temperatures(root)
    found = tuple(
        SensorStatus(
            name=name, kind="temperature", place=str(file), usable=name in now,
            reason="" if name in now else "it gives no temperature now",
        )
        for name, file in _places(root)
    )  # fmt: skip
    if found:
        return found
    return (
        SensorStatus(
            name="temperature", kind="temperature", place=str(root / "sys/class/thermal"),
            usable=False, reason="no thermal zone there",
        ),
    )  # fmt: skip


def _places(root: Path) -> Iterator[tuple[str, Path]]:
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        yield text_or(zone / "type", zone.name), zone / "temp"
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        kind = text_or(chip / "name", "")
        if kind in _CHIPS:
            for file in sorted(chip.glob("temp*_input")):
                label = text_or(file.with_name(file.name.replace("_input", "_label")), file.name)
                yield f"{kind} {label.removesuffix('_input')}", file
