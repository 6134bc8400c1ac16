"""Clocks that exist in memory only: for simulated boards, tests and CI; and no clocks at all."""

from __future__ import annotations

import json
from collections.abc import Sequence

from floe.core.errors import BadRequest
from floe.power.base import Clocks, Domain, Saved

_PLACE = "simulated"


class SimulatedKnobs:
    """Knobs over `domains`; they start at their highest clocks."""

    name = "simulated"
    advice_only = ""

    def __init__(self, *, domains: Sequence[Domain]) -> None:
        self.domains = tuple(domains)
        self._now = {domain.name: domain.steps_mhz[-1] for domain in self.domains}

    def read(self) -> dict[str, float]:
        """MHz by domain."""
        return dict(self._now)

    def save(self) -> tuple[Saved, ...]:
        """The clocks as they are."""
        return (Saved(place=_PLACE, value=json.dumps(self._now)),)

    def apply(self, clocks: Clocks) -> None:
        """Set the given domains to the nearest clocks they have, all or none."""
        known = {domain.name: domain for domain in self.domains}
        for name, mhz in clocks.items():
            if name not in known:
                raise BadRequest(f"there is no clock {name!r} here", param=name)
            low, high = known[name].steps_mhz[0], known[name].steps_mhz[-1]
            if not low <= mhz <= high:
                raise BadRequest(
                    f"{name} = {mhz:g} MHz is outside {low:g} to {high:g} MHz", param=name
                )
        self._now |= {name: known[name].nearest(mhz) for name, mhz in clocks.items()}

    def owns(self, place: str) -> bool:
        """Only its own place."""
        return place == _PLACE

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Set the saved clocks."""
        for one in saved:
            self._now = dict(json.loads(one.value))
        return ()


class NoKnobs:
    """A machine whose clocks cannot be set: a controller only gives advice."""

    name = "noop"
    domains: tuple[Domain, ...] = ()

    def __init__(self, *, reason: str = "this machine offers no clocks to set") -> None:
        self.advice_only = reason

    def read(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def save(self) -> tuple[Saved, ...]:
        """Nothing."""
        return ()

    def apply(self, clocks: Clocks) -> None:
        """Refuse any domain; nothing asked is nothing done."""
        if clocks:
            raise BadRequest(f"there are no clocks here: {self.advice_only}")

    def owns(self, place: str) -> bool:
        """Nothing."""
        del place
        return False

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Nothing can be written."""
        return tuple(f"{one.place}: {self.advice_only}" for one in saved)
