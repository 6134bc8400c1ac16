"""Several knobs as one: CPU, GPU and memory of one board."""

from __future__ import annotations

from collections.abc import Sequence

from floe.core.errors import BadRequest, FloeError
from floe.power.base import Clocks, Domain, Knobs, Saved


class ManyKnobs:
    """The domains of all `parts`; a domain belongs to the first part that has it."""

    def __init__(self, *, parts: Sequence[Knobs]) -> None:
        self._parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        owner: dict[str, Knobs] = {}
        for part in self._parts:
            for domain in part.domains:
                owner.setdefault(domain.name, part)
        self._owner = owner
        self.domains: tuple[Domain, ...] = tuple(
            d for part in self._parts for d in part.domains if owner[d.name] is part
        )

    @property
    def advice_only(self) -> str:
        """Why not all of them can be set."""
        return next((part.advice_only for part in self._parts if part.advice_only), "")

    def read(self) -> dict[str, float]:
        """MHz by domain."""
        return {
            name: mhz
            for part in self._parts
            for name, mhz in part.read().items()
            if self._owner.get(name) is part
        }

    def save(self) -> tuple[Saved, ...]:
        """Every part's values."""
        return tuple(one for part in self._parts for one in part.save())

    def apply(self, clocks: Clocks) -> None:
        """Set the given domains, all or none."""
        for name in clocks:
            if name not in self._owner:
                known = ", ".join(self._owner) or "none"
                raise BadRequest(f"there is no clock {name!r} here; known: {known}", param=name)
        done: list[tuple[Knobs, tuple[Saved, ...]]] = []
        for part in self._parts:
            own = {n: mhz for n, mhz in clocks.items() if self._owner[n] is part}
            if not own:
                continue
            before = part.save()
            try:
                part.apply(own)
            except FloeError:
                for earlier, saved in reversed(done):
                    earlier.put_back(saved)
                raise
            done.append((part, before))

    def owns(self, place: str) -> bool:
        """Whether one of the parts does."""
        return any(part.owns(place) for part in self._parts)

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Each part's own values."""
        faults: list[str] = []
        for part in self._parts:
            faults += part.put_back([one for one in saved if part.owns(one.place)])
        return tuple(faults)
