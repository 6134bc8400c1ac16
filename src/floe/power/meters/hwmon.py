"""Power and energy of hwmon chips: Jetson's INA3221, AMD and Intel GPUs, CPU energy drivers.

Chips are found by what they call themselves and rails by their label, since both paths and
numbers move with kernels (bug-log E04). Units are those of Documentation/hwmon/sysfs-interface:
millivolt, milliampere, microwatt, microjoule.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from floe.power.base import SensorStatus
from floe.power.meters.files import number_of, text_or
from floe.power.meters.rails import CounterRail, PowerRail, Rail

# The whole module's supply, by board: where one is there, it is the sum (bug-log E01).
MODULE_INPUTS = ("VDD_IN", "POM_5V_IN", "SYS_VIN_TOTAL")
_WHOLE_CHIPS = ("amdgpu", "i915", "xe")
_CURRENT_CHIPS = ("ina3221", "ina219", "ina226", "ina238")


def hwmon_rails(root: Path = Path("/")) -> tuple[list[Rail], list[str], list[SensorStatus]]:
    """Rails, the names of those to sum, and what was found under `root`.

    Of a board's supply rails the module input is counted where there is one, else all of them.
    """
    rails: list[Rail] = []
    found: list[SensorStatus] = []
    supplies: list[str] = []
    counted: list[str] = []
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        kind = text_or(chip / "name", "")
        for rail, place in _rails_of(chip, kind):
            fault = "" if os.access(place, os.R_OK) else "unavailable: permission"
            todo = f"sudo chmod a+r {place} (until the next boot)" if fault else ""
            found.append(
                SensorStatus(
                    name=rail.name, kind=f"hwmon {kind}", place=str(place), usable=not fault,
                    reason=fault, todo=todo,
                )
            )  # fmt: skip
            if fault:
                continue
            rails.append(rail)
            if kind in _CURRENT_CHIPS:
                supplies.append(rail.name)
            elif kind in _WHOLE_CHIPS:
                counted.append(rail.name)
    whole = [s for s in supplies if s.rsplit(" ", 1)[-1] in MODULE_INPUTS]
    if not found:
        found.append(
            SensorStatus(
                name="hwmon", kind="power sensor", place=str(root / "sys/class/hwmon"),
                usable=False,
                reason="no chip with power or energy there; searched by the names "
                f"{', '.join((*_CURRENT_CHIPS, *_WHOLE_CHIPS))}",
            )
        )  # fmt: skip
    return rails, [*counted, *(whole or supplies)], found


def is_supply(rail: str) -> bool:
    """Whether a rail of that name is a supply line of a board."""
    return rail.split(" ", 1)[0] in _CURRENT_CHIPS


def _rails_of(chip: Path, kind: str) -> list[tuple[Rail, Path]]:
    out: list[tuple[Rail, Path]] = []
    for file in sorted(chip.glob("energy*_input")):
        name = f"{kind} {text_or(chip / file.name.replace('_input', '_label'), file.stem[:-6])}"
        read = _reader(file, 1e-6)
        out.append((CounterRail(name=name, read_j=read, range_j=None), file))
    if out:
        return out  # a counter is better than samples of the same chip
    for file in sorted({*chip.glob("power*_average"), *chip.glob("power*_input")}):
        if (
            file.name.endswith("_input")
            and file.with_name(file.name.replace("_input", "_average")).exists()
        ):
            continue
        stem = file.name.rsplit("_", 1)[0]
        name = f"{kind} {text_or(chip / f'{stem}_label', stem)}"
        out.append((PowerRail(name=name, read_w=_reader(file, 1e-6)), file))
    if kind in _CURRENT_CHIPS:
        out += _supplies(chip, kind, taken={rail.name for rail, _ in out})
    return out


def _supplies(chip: Path, kind: str, *, taken: set[str]) -> list[tuple[Rail, Path]]:
    """Volts times amperes of every channel that has both and a label of its own."""
    out: list[tuple[Rail, Path]] = []
    for current in sorted(chip.glob("curr*_input")):
        number = current.name.removeprefix("curr").removesuffix("_input")
        voltage = chip / f"in{number}_input"
        label = text_or(chip / f"in{number}_label", "")
        name = f"{kind} {label}"
        if not label or name in taken or label.startswith("sum of") or not voltage.exists():
            continue
        out.append((PowerRail(name=name, read_w=_product(voltage, current)), current))
    return out


def _reader(file: Path, unit: float) -> Callable[[], float]:
    return lambda: number_of(file) * unit


def _product(voltage: Path, current: Path) -> Callable[[], float]:
    return lambda: number_of(voltage) * number_of(current) * 1e-6
