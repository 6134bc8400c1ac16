"""Clocks behind small files: all written or none, and a way back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floe.core.errors import BadRequest, KnobFailed, NotAllowed
from floe.power.base import Clocks, Domain, Saved
from floe.power.meters.files import number_of, text_of, text_or


@dataclass(frozen=True, kw_only=True)
class FileClock:
    """One domain's files. `per_mhz` is how many of the files' units one MHz has.

    `low` and `high` bound what the kernel may choose; both are written to hold one clock.
    `mode`, where there is one, is set to `mode_value` first, and put back.
    """

    domain: Domain
    low: Path
    high: Path
    current: Path
    per_mhz: float
    mode: Path | None = None
    mode_value: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that is written, in the order to put back."""
        return (self.low, self.high) if self.mode is None else (self.low, self.high, self.mode)

    def writes(self, mhz: float) -> list[tuple[Path, str]]:
        """What to write for `mhz`: a bound never crosses the other on the way."""
        value = str(round(mhz * self.per_mhz))
        rising = mhz * self.per_mhz > number_of(self.high)
        bounds = [(self.high, value), (self.low, value)]
        first = [(self.mode, self.mode_value)] if self.mode is not None else []
        return [*first, *(bounds if rising else reversed(bounds))]


class FileKnobs:
    """Knobs over `clocks`; several clocks of one domain (one per core) move together."""

    def __init__(self, *, name: str, clocks: Sequence[FileClock]) -> None:
        self.name = name
        self._clocks = tuple(clocks)
        self.domains = _merged(self._clocks)

    @property
    def advice_only(self) -> str:
        """Why nothing can be set."""
        if not self._clocks:
            return "this machine offers no such clocks"
        closed = [f for c in self._clocks for f in c.files if not os.access(f, os.W_OK)]
        return f"no right to write {closed[0]}: run as root" if closed else ""

    def read(self) -> dict[str, float]:
        """MHz by domain; the highest of a domain's clocks."""
        out: dict[str, float] = {}
        for clock in self._clocks:
            try:
                mhz = number_of(clock.current) / clock.per_mhz
            except (OSError, ValueError):
                continue
            out[clock.domain.name] = max(mhz, out.get(clock.domain.name, 0.0))
        return out

    def save(self) -> tuple[Saved, ...]:
        """Every file's value, to be put back in this order."""
        return tuple(
            Saved(place=str(file), value=text_of(file)) for c in self._clocks for file in c.files
        )

    def apply(self, clocks: Clocks) -> None:
        """Set the given domains, all or none."""
        self._check(clocks)
        if self.advice_only:
            raise NotAllowed(f"clocks cannot be set: {self.advice_only}")
        done: list[tuple[Path, str]] = []
        for clock in self._clocks:
            wanted = clocks.get(clock.domain.name)
            if wanted is None:
                continue
            for file, value in self._writes(clock, wanted, done):
                before = text_or(file, "")
                try:
                    file.write_text(value, encoding="ascii")
                except OSError as error:
                    self._undo(done)
                    raise KnobFailed(
                        f"{file} did not take {value}: {error.strerror}; nothing was changed"
                    ) from error
                done.append((file, before))

    def owns(self, place: str) -> bool:
        """Whether it is one of the files these knobs write."""
        return any(place == str(file) for c in self._clocks for file in c.files)

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Write saved values; bounds twice, since each may bar the other the first time."""
        faults: dict[str, str] = {}
        for _ in range(2):
            for one in saved:
                try:
                    Path(one.place).write_text(one.value, encoding="ascii")
                    if text_of(Path(one.place)) != one.value:
                        raise OSError(0, "it holds another value than was written")
                    faults.pop(one.place, None)
                except OSError as error:
                    faults[one.place] = f"{one.place}: {error.strerror}"
        return tuple(faults.values())

    def _check(self, clocks: Clocks) -> None:
        known = {domain.name: domain for domain in self.domains}
        for name, mhz in clocks.items():
            if name not in known:
                raise BadRequest(
                    f"there is no clock {name!r} here; known: {', '.join(known) or 'none'}",
                    param=name,
                )
            low, high = known[name].steps_mhz[0], known[name].steps_mhz[-1]
            if not low <= mhz <= high:  # false for NaN, too
                raise BadRequest(
                    f"{name} = {mhz:g} MHz is outside {low:g} to {high:g} MHz", param=name
                )

    def _writes(
        self, clock: FileClock, mhz: float, done: Sequence[tuple[Path, str]]
    ) -> list[tuple[Path, str]]:
        """What to write; where the bounds in force cannot be read, what was done is undone."""
        try:
            return clock.writes(clock.domain.nearest(mhz))
        except (OSError, ValueError) as error:
            self._undo(done)
            raise KnobFailed(
                f"{clock.high} cannot be read ({type(error).__name__}); nothing was changed"
            ) from error

    def _undo(self, done: Sequence[tuple[Path, str]]) -> None:
        self.put_back([Saved(place=str(file), value=value) for file, value in reversed(done)])


def steps_of(values: str, per_mhz: float) -> tuple[float, ...]:
    """Rising MHz from a file's list."""
    return tuple(sorted({int(v) / per_mhz for v in values.split()}))


def _merged(clocks: Sequence[FileClock]) -> tuple[Domain, ...]:
    """One domain per name: steps of all its clocks, within the bounds that all share."""
    by_name: dict[str, list[Domain]] = {}
    for clock in clocks:
        by_name.setdefault(clock.domain.name, []).append(clock.domain)
    return tuple(_one(name, domains) for name, domains in by_name.items())


def _one(name: str, domains: Sequence[Domain]) -> Domain:
    low = max(d.steps_mhz[0] for d in domains)
    high = min(d.steps_mhz[-1] for d in domains)
    steps = {low, high, *(s for d in domains for s in d.steps_mhz if low <= s <= high)}
    return Domain(
        name=name,
        steps_mhz=tuple(sorted(steps)),
        is_continuous=all(d.is_continuous for d in domains),
    )
