"""What `floe power doctor` and `status` show."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floe.power.base import Knobs, SensorStatus, Window
from floe.power.build import POWER
from floe.power.hold import LEASE, holder
from floe.power.knobs.probe import all_knobs, open_knobs
from floe.power.meters.probe import open_meter, sensors
from floe.power.meters.thermal import temperatures, thermal_sensors

_SERIES = re.compile(r"^floe_(power_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_PLACES = {
    "cpufreq": "sys/devices/system/cpu/cpufreq",
    "devfreq": "sys/class/devfreq",
    "nvml": "NVML",
    "nvpmodel": "etc/nvpmodel.conf",
}


def doctor_rows(root: Path) -> list[dict[str, Any]]:
    """Sensors, temperatures and knobs as flat records."""
    rows = [asdict(s) for s in (*sensors(root), *thermal_sensors(root))]
    rows += [asdict(_knob(name, knobs, root)) for name, knobs in all_knobs(root).items()]
    meter = open_meter("auto", root=root, start=False)
    reason = "no sensor gives joules here: energy is unknown" if meter.label == "unknown" else ""
    used = SensorStatus(
        name=f"meter {meter.name}", kind=f"energy, {meter.label}", place="power.meter = auto",
        usable=not reason, reason=reason,
    )  # fmt: skip
    return [*rows, asdict(used)]


def _knob(name: str, knobs: Knobs, root: Path) -> SensorStatus:
    """What a kind of clock offers; read-only clocks are only advised (bug-log E19)."""
    place = _PLACES[name] if name == "nvml" else str(root / _PLACES[name])
    offered = "; ".join(
        f"{d.name} {d.steps_mhz[0]:g} to {d.steps_mhz[-1]:g}"
        + ("" if d.is_continuous else f" in {len(d.steps_mhz)} steps")
        for d in knobs.domains
    )
    todo = ""
    if knobs.domains and knobs.advice_only:
        todo = "run as root to set them; until then they are only advised"
    elif "installed" in knobs.advice_only:
        todo = "pip install 'floe[power]'" if name == "nvml" else ""
    if name == "nvml" and knobs.domains and not any(d.name == "emc" for d in knobs.domains):
        offered += "; its memory clock cannot be locked"  # bug-log E20
    reason = "; ".join(part for part in (offered, knobs.advice_only) if part)
    return SensorStatus(
        name=name,
        kind="clocks",
        place=place,
        usable=not knobs.advice_only,
        reason=reason,
        todo=todo,
    )


def doctor_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each."""
    for row in rows:
        mark = "ok" if row["usable"] else "-"
        reason = f": {row['reason']}" if row["reason"] else ""
        todo = f"  -> {row['todo']}" if row["todo"] else ""
        yield f"{mark:<4} {row['name']:<24} {row['kind']:<18} {row['place']}{reason}{todo}"


def power_series(text: str) -> dict[str, float]:
    """The power figures of a /metrics page, by name with labels."""
    return {
        f"{name}{{{labels}}}" if labels else name: float(value)
        for name, labels, value in _SERIES.findall(text)
    }


def machine_now(root: Path, folder: Path, seconds: float) -> dict[str, Any]:
    """Clocks, temperatures, who holds clocks, and a window of energy."""
    meter = open_meter("auto", root=root)
    try:
        mark = meter.begin()
        time.sleep(seconds)
        window = meter.end(mark)
    finally:
        meter.close()
    held_by = holder(folder / POWER) if (folder / POWER).is_dir() else None
    return {
        "clocks_mhz": open_knobs("auto", root=root).read(),
        "temperatures_c": temperatures(root),
        "holder": held_by,
        "is_left_behind": held_by is None and (folder / POWER / LEASE).exists(),
        "meter": meter.name,
        **window_figures(window),
    }


def window_figures(window: Window) -> dict[str, Any]:
    """A window as JSON: no joule without its label."""
    watts = None
    if window.energy_j is not None and window.duration_s > 0:
        watts = window.energy_j / window.duration_s
    return {
        "duration_s": window.duration_s,
        "energy_j": window.energy_j,
        "power_w": watts,
        "label": window.label,
        "rails": [asdict(rail) for rail in window.rails],
    }


def status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What `status` prints."""
    yield f"from         {found['from']}"
    if "series" in found:
        if not found["series"]:
            yield "power        the server tells nothing of power"
        for name, value in sorted(found["series"].items()):
            yield f"{name.removeprefix('power_'):<60} {value:.6g}"
        return
    for what, unit in (("clocks_mhz", "MHz"), ("temperatures_c", "C")):
        named = ", ".join(f"{n} {v:.0f} {unit}" for n, v in found[what].items())
        yield f"{what.partition('_')[0]:<12} {named or 'not readable here'}"
    yield f"lease        {_lease(found)}"
    yield f"meter        {found['meter']}"
    yield f"energy       {joules(found)}"


def _lease(found: Mapping[str, Any]) -> str:
    if found["holder"] is not None:
        return f"clocks are held by process {found['holder']}"
    if found["is_left_behind"]:
        return "clocks of a killed holder are still in force: floe power reset"
    return "nobody holds clocks"


def joules(found: Mapping[str, Any]) -> str:
    """Energy and power with their label; unknown is said, with the reason, never shown as 0."""
    if found["energy_j"] is None:
        reasons = "; ".join(f"{r['rail']}: {r['reason']}" for r in found["rails"] if r["reason"])
        return f"unknown ({reasons or 'no sensor: see floe power doctor'})"
    return (
        f"{found['energy_j']:.3f} J in {found['duration_s']:.2f} s = {found['power_w']:.2f} W "
        f"({found['label']})"
    )
