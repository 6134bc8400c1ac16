"""Rails as ever growing joules, from an energy counter or from power read again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from floe.power.base import Label

_MOST_WATTS = 2_000.0  # no board that runs Floe draws more: a larger figure is a counter's reset
_SLOWEST_S = 0.2  # GPUs add to their counter so rarely: a step between two near readings is sound


class UnreadableError(Exception):
    """A sensor that gives no figure now; the message says why."""


class Rail(Protocol):
    """One rail. `tick` is called now and then, so that a counter that wraps is never lost."""

    name: str
    label: Label
    period_s: float

    def tick(self, now_s: float) -> None:
        """Read the sensor; a failure is kept for `joules`."""
        ...

    def joules(self, now_s: float) -> float:
        """Joules since the rail was opened.

        Raises:
            UnreadableError: the sensor gave nothing at some time; the sum is not known any more.
        """
        ...


class _Sum:
    """Joules gathered so far, or why they are not known."""

    def __init__(self) -> None:
        self.energy_j, self.fault = 0.0, ""

    def value(self) -> float:
        if self.fault:
            fault, self.fault = self.fault, ""  # said once; the next window starts clean
            raise UnreadableError(fault)
        return self.energy_j


class CounterRail:
    """An energy counter that wraps at `range_j` (bug-log E16 is the caller's business)."""

    def __init__(
        self,
        *,
        name: str,
        read_j: Callable[[], float],
        range_j: float | None,
        label: Label = "measured",
    ) -> None:
        self.name, self.label = name, label
        self._read_j, self._range_j = read_j, range_j
        # A quarter of a wrap at full power, and never rarer than a minute.
        self.period_s = min(60.0, range_j / _MOST_WATTS / 4) if range_j else 60.0
        self._sum = _Sum()
        self._last: tuple[float, float] | None = None

    def tick(self, now_s: float) -> None:
        """Add what was spent since the last reading."""
        try:
            read = self._read_j()
        except (OSError, ValueError) as error:
            self._sum.fault, self._last = why(error), None
            return
        if self._last is not None:
            before_j, before_s = self._last
            spent = read - before_j
            if spent < 0 and self._range_j is not None:
                spent += self._range_j
            if spent < 0 or spent > _MOST_WATTS * max(now_s - before_s, _SLOWEST_S):
                self._sum.fault = "the counter was reset"
            else:
                self._sum.energy_j += spent
        self._last = (read, now_s)

    def joules(self, now_s: float) -> float:
        """Joules since the first reading."""
        self.tick(now_s)
        return self._sum.value()


class PowerRail:
    """Watts read every `period_s`, summed by the trapezoid rule."""

    def __init__(
        self,
        *,
        name: str,
        read_w: Callable[[], float],
        label: Label = "measured",
        period_s: float = 0.1,
    ) -> None:
        self.name, self.label, self.period_s = name, label, period_s
        self._read_w = read_w
        self._sum = _Sum()
        self._last: tuple[float, float] | None = None

    def tick(self, now_s: float) -> None:
        """Add the area since the last reading."""
        try:
            power_w = self._read_w()
        except (OSError, ValueError) as error:
            self._sum.fault, self._last = why(error), None
            return
        if self._last is not None:
            before_w, before_s = self._last
            self._sum.energy_j += (power_w + before_w) / 2 * (now_s - before_s)
        self._last = (power_w, now_s)

    def joules(self, now_s: float) -> float:
        """Joules since the first reading."""
        self.tick(now_s)
        return self._sum.value()


def why(error: Exception) -> str:
    """Why a sensor cannot be read, in words."""
    if isinstance(error, PermissionError):
        return "unavailable: permission"
    if isinstance(error, FileNotFoundError):
        return "the sensor is gone"
    if isinstance(error, OSError):
        return f"the sensor fails: {error.strerror or type(error).__name__}"
    return f"the sensor gives no number: {error}"
