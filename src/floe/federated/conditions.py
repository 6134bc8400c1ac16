"""When a device may train: on mains, charged, cool and idle. Read from the kernel's files.

Paths can be others than the system's, so that tests need no battery.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from floe.core.errors import BadConfig, Busy
from floe.core.sections import FederatedConfig


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What must hold between two steps; None asks nothing.

    `min_battery_percent` and `on_mains` hold by themselves where there is no battery. `max_load`
    is the load average of other processes per core, over one minute.
    """

    min_battery_percent: float | None = None
    on_mains: bool = False
    max_celsius: float | None = None
    max_load: float | None = None

    def __post_init__(self) -> None:
        for name in ("min_battery_percent", "max_celsius", "max_load"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0.0):
                raise BadConfig(f"{name} must be a number of 0 or more", param=name)
        if (self.min_battery_percent or 0.0) > 100.0:
            raise BadConfig("min_battery_percent is at most 100", param="min_battery_percent")


def limits_of(fed: FederatedConfig) -> Limits:
    """A federation's table as limits; its 0 asks nothing."""
    return Limits(
        min_battery_percent=fed.min_battery_percent or None,
        on_mains=fed.on_mains,
        max_celsius=fed.max_celsius or None,
        max_load=fed.max_load or None,
    )


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """Where the kernel says how the device is; readings are None where it does not say."""

    power_supply: Path = Path("/sys/class/power_supply")
    thermal: Path = Path("/sys/class/thermal")
    loadavg: Path = Path("/proc/loadavg")
    n_cores: int = os.cpu_count() or 1

    def battery_percent(self) -> float | None:
        """The charge of the emptiest battery of the device itself, None without one."""
        charges = [_number(f / "capacity") for f in self._batteries()]
        return min((c for c in charges if c is not None), default=None)

    def is_on_mains(self) -> bool:
        """Whether a charger is online, or there is no battery to run down."""
        if not self._batteries():
            return True
        supplies = [f for f in _folders(self.power_supply) if _text(f / "type") != "Battery"]
        return any(_number(f / "online") == 1.0 for f in supplies)

    def celsius(self) -> float | None:
        """The hottest thermal zone, None without one."""
        zones = [_number(f / "temp") for f in _folders(self.thermal) if "zone" in f.name]
        return max((z / 1000.0 for z in zones if z is not None), default=None)

    def load(self) -> float | None:
        """Load average of the last minute per core."""
        text = _text(self.loadavg)
        return None if text is None else float(text.split()[0]) / self.n_cores

    def _batteries(self) -> list[Path]:
        """Not those of mice and headsets, whose scope is "Device"."""
        return [
            f
            for f in _folders(self.power_supply)
            if _text(f / "type") == "Battery" and _text(f / "scope") != "Device"
        ]


class Conditions:
    """Asked between two steps: returns at once, waits, or stops with the reason."""

    def __init__(
        self,
        *,
        limits: Limits,
        sensors: Sensors | None = None,
        patience_s: float = 600.0,
        every_s: float = 5.0,
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`patience_s` is how long one pause may last, `threads` what training itself loads.

        Raises:
            BadConfig: a limit that this device has no sensor for, or a patience below 0.
        """
        if not patience_s >= 0.0:
            raise BadConfig("patience_s must be a number of 0 or more", param="patience_s")
        self._limits, self._sensors = limits, sensors or Sensors()
        self._patience_s, self._every_s, self._threads = patience_s, every_s, threads
        self._clock, self._sleep = clock, sleep
        if limits.max_celsius is not None and self._sensors.celsius() is None:
            raise BadConfig(
                f"max_celsius is set, but {self._sensors.thermal} shows no temperature; unset it",
                param="max_celsius",
            )
        if limits.max_load is not None and self._sensors.load() is None:
            raise BadConfig(
                f"max_load is set, but {self._sensors.loadavg} cannot be read; unset it",
                param="max_load",
            )

    def obstacle(self) -> str | None:
        """Why training may not go on now, in words; None when it may."""
        limits, sensors = self._limits, self._sensors
        if limits.on_mains and not sensors.is_on_mains():
            return "the device runs on its battery"
        charge, least = sensors.battery_percent(), limits.min_battery_percent
        if least is not None and charge is not None and charge < least:
            return f"the battery is at {charge:.0f} %, below {least:.0f} %"
        heat, most = sensors.celsius(), limits.max_celsius
        if most is not None and heat is not None and heat > most:
            return f"the device is at {heat:.0f} degrees Celsius, above {most:.0f}"
        load, most_load = sensors.load(), limits.max_load
        if most_load is not None and load is not None:
            others = load - self._threads / sensors.n_cores
            if others > most_load:
                return f"other processes load a core by {others:.2f}, above {most_load:.2f}"
        return None

    def wait(self, paused: Callable[[str], None] = lambda _: None) -> float:
        """Seconds waited until training may go on; `paused` hears each reason once.

        Raises:
            Busy: it still may not after `patience_s`.
        """
        began, told = self._clock(), ""
        while reason := self.obstacle():
            waited = self._clock() - began
            if waited >= self._patience_s:
                raise Busy(f"training stopped after waiting {waited:.0f} s: {reason}")
            if reason != told:
                paused(reason)
                told = reason
            self._sleep(self._every_s)
        return self._clock() - began


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None  # sysfs files come and go, and some answer with an error of the driver


def _number(path: Path) -> float | None:
    text = _text(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
