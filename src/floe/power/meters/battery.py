"""The battery's own gauge: what a whole device draws while it is off the mains."""

from __future__ import annotations

from pathlib import Path

from floe.power.base import SensorStatus
from floe.power.meters.files import number_of, text_or
from floe.power.meters.rails import PowerRail, Rail

_SLOW_S = 1.0  # gauges refresh about once a second


def battery_rails(root: Path = Path("/")) -> tuple[list[Rail], list[str], list[SensorStatus]]:
    """One rail per battery, all of them counted, and what was found under `root`."""
    rails: list[Rail] = []
    found: list[SensorStatus] = []
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        if text_or(supply / "type", "") != "Battery":
            continue
        name = f"battery {supply.name}"
        has_power = (supply / "power_now").exists()
        has_current = (supply / "current_now").exists() and (supply / "voltage_now").exists()
        reason = "" if has_power or has_current else "it tells neither power nor current"
        found.append(
            SensorStatus(
                name=name, kind="battery", place=str(supply), usable=not reason, reason=reason
            )
        )
        if not reason:
            rails.append(_rail(supply, name, has_power=has_power))
    if not found:
        place = str(root / "sys/class/power_supply")
        found.append(
            SensorStatus(
                name="battery", kind="battery", place=place, usable=False, reason="no battery there"
            )
        )
    return rails, [rail.name for rail in rails], found


def charge_of(root: Path = Path("/")) -> float | None:
    """The first battery's charge, 0 to 1; None on mains or without one."""
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        if text_or(supply / "type", "") == "Battery":
            if text_or(supply / "status", "") != "Discharging":
                return None
            try:
                return min(max(number_of(supply / "capacity") / 100, 0.0), 1.0)
            except (OSError, ValueError):
                return None
    return None


def _rail(supply: Path, name: str, *, has_power: bool) -> Rail:
    def watts() -> float:
        if text_or(supply / "status", "") != "Discharging":
            raise ValueError("the device is on mains")
        if has_power:
            return abs(number_of(supply / "power_now")) * 1e-6
        micro = number_of(supply / "current_now") * number_of(supply / "voltage_now")
        return abs(micro) * 1e-12

    return PowerRail(name=name, read_w=watts, period_s=_SLOW_S)
