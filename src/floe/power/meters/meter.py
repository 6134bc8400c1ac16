"""A meter over rails, with a thread that reads them often enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from floe.power.base import Label, RailEnergy, Window
from floe.power.meters.rails import Rail, UnreadableError

_WORST_FIRST: tuple[Label, ...] = ("unknown", "modelled", "measured")


@dataclass(frozen=True, kw_only=True)
class _Mark:
    at_s: float
    joules: tuple[float | None, ...]


class RailMeter:
    """Windows over `rails`; `counted` are the names that add up to the whole.

    Rails that are part of another (a core inside a package) are reported and not counted.
    `start` False leaves the reading to `tick`.
    """

    def __init__(
        self,
        *,
        name: str,
        rails: Sequence[Rail],
        counted: Sequence[str],
        clock_s: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        self.name = name
        self._rails, self._counted = tuple(rails), tuple(counted)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.tick()
        self._thread: threading.Thread | None = None
        if start and rails:
            self._thread = threading.Thread(target=self._read_often, name="floe-meter", daemon=True)
            self._thread.start()

    @property
    def label(self) -> Label:
        """The worst label of the counted rails."""
        return _worst([r.label for r in self._rails if r.name in self._counted])

    def tick(self) -> None:
        """Read every rail once."""
        with self._lock:
            now_s = self._clock_s()
            for rail in self._rails:
                rail.tick(now_s)

    def begin(self) -> object:
        """Open a window."""
        with self._lock:
            now_s = self._clock_s()
            return _Mark(at_s=now_s, joules=tuple(_joules(r, now_s)[0] for r in self._rails))

    def end(self, mark: object) -> Window:
        """Joules of each rail since `begin`, and their sum over the counted rails."""
        if not isinstance(mark, _Mark):
            raise TypeError("a window is ended with what begin() gave")
        with self._lock:
            now_s = self._clock_s()
            rails = tuple(
                _spent(rail, before, *_joules(rail, now_s))
                for rail, before in zip(self._rails, mark.joules, strict=True)
            )
        counted = [r for r in rails if r.rail in self._counted]
        label = _worst([r.label for r in counted])
        known = [r.energy_j for r in counted if r.energy_j is not None]
        return Window(
            duration_s=now_s - mark.at_s,
            rails=rails,
            energy_j=sum(known) if label != "unknown" else None,
            label=label,
            counted=tuple(r.rail for r in counted),
        )

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _read_often(self) -> None:
        period_s = min(rail.period_s for rail in self._rails)
        while not self._stop.wait(period_s):
            self.tick()


def _joules(rail: Rail, now_s: float) -> tuple[float | None, str]:
    try:
        return rail.joules(now_s), ""
    except UnreadableError as error:
        return None, str(error)


def _spent(rail: Rail, before: float | None, after: float | None, fault: str) -> RailEnergy:
    if before is None or after is None:
        reason = fault or "the sensor gave nothing when the window began"
        return RailEnergy(rail=rail.name, energy_j=None, label="unknown", reason=reason)
    return RailEnergy(rail=rail.name, energy_j=after - before, label=rail.label)


def _worst(labels: Sequence[Label]) -> Label:
    return next((label for label in _WORST_FIRST if label in labels), "unknown")
