"""Adapters that configuration keeps in memory, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from floe.adapters.admission import Admission, handle_of
from floe.adapters.ahead import NOBODY
from floe.adapters.entries import Entry
from floe.adapters.loader import Run
from floe.adapters.lookup import Lookup
from floe.adapters.slots import H
from floe.adapters.table import Table
from floe.core.errors import BadAdapter, BadConfig, Busy
from floe.core.route import Share


class Pinned(Generic[H]):
    """Loads what `names` mean now and keeps it; what cannot be loaded is in `notes`."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        table: Table[H],
        admission: Admission[H],
        lookup: Lookup[H],
        entries: Callable[[], tuple[Entry, ...]],
        run: Run,
        wait_s: float,
    ) -> None:
        self.names = tuple(names)
        self._table, self._admission, self._lookup = table, admission, lookup
        self._entries, self._run, self._wait_s = entries, run, wait_s
        self._notes: dict[str, str] = {}
        self.is_started = not self.names

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as configured."""
        return tuple(
            f"adapters.pinned: {name!r} is not in memory: {why}"
            for name, why in self._notes.items()
        )

    async def start(self) -> None:
        """Once at the start, and whenever a name may mean something else."""
        self.is_started = True
        if not self.names:
            return
        entries = {entry.name: entry for entry in await self._run(self._entries)}
        digests: dict[str, str] = {}
        fixed: dict[str, int] = {}
        self._notes = {}
        for name in self.names:
            entry = entries.get(name)
            if entry is None or entry.stored is None:
                self._notes[name] = entry.reason if entry else "there is no adapter of that name"
                continue
            manifest = entry.stored.manifest
            digests[name] = manifest.digest
            fixed[manifest.digest] = manifest.file_bytes
        self._table.fixed = fixed
        for slot in self._table.slots.values():
            slot.is_fixed = slot.key in fixed
        for name, digest in digests.items():
            await self._bring(name, digest)

    async def _bring(self, name: str, digest: str) -> None:
        try:
            slot = await self._lookup.single(Share(name=name, digest=digest, weight=1.0))
            slots = await self._admission.admit(
                [slot], tenant=NOBODY, wait_s=self._wait_s, is_counted=False
            )
        except (BadAdapter, Busy) as error:
            self._notes[name] = error.message
            return
        try:
            await handle_of(slots[0])
        except BadAdapter as error:
            self._notes[name] = error.message
        finally:
            self._admission.release(slots, tenant=NOBODY)


def check_pinned(names: Sequence[str], entries: Sequence[Entry], *, room_bytes: int) -> None:
    """Raise BadConfig if the names cannot all be kept in `room_bytes`."""
    stored = {entry.name: entry for entry in entries}
    total = 0
    for name in names:
        entry = stored.get(name)
        if entry is None or entry.stored is None:
            why = entry.reason if entry else "there is no adapter of that name"
            raise BadConfig(f"adapters.pinned: {name!r}: {why}", param="adapters.pinned")
        total += entry.stored.manifest.file_bytes
    if names and total > room_bytes:
        raise BadConfig(
            f"adapters.pinned need {total} bytes; of adapters.budget_bytes {room_bytes} are not "
            "guaranteed to tenants. Raise the budget or pin fewer",
            param="adapters.pinned",
        )
