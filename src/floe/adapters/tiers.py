"""Where an adapter is brought from: host memory, else the store's disk or remote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from floe.adapters.entries import Entry
from floe.adapters.host import HostMemory
from floe.adapters.slots import Store, Tier
from floe.core.adapter import StoredAdapter


class Tiers:
    """The store, with host memory in front of it if there is any."""

    def __init__(self, store: Store, host: HostMemory | None) -> None:
        self._store, self._host = store, host
        self._stored: dict[str, StoredAdapter] = {}

    def entries(self) -> tuple[Entry, ...]:
        """Every name of the store."""
        entries = self._store.entries()
        found = [e.stored for e in entries if e.stored is not None]
        self._stored.update((stored.manifest.digest, stored) for stored in found)
        return entries

    def find(self, name: str, digest: str) -> StoredAdapter:
        """The adapter with that content; raises BadAdapter."""
        stored = self._store.find(name, digest)
        self._stored[digest] = stored
        return stored

    def where(self, digest: str) -> Tier:
        """The tier that a load would read."""
        if self._host is not None and self._host.has(digest):
            return "host"
        stored = self._stored.get(digest)
        return self._store.tier(stored) if stored is not None else "disk"

    @contextmanager
    def opened(self, name: str, digest: str) -> Iterator[Path]:
        """Its GGUF, whose bytes were checked; the disk is read once. Raises BadAdapter."""
        stored = self.find(name, digest)
        if self._host is None:
            with self._store.opened(stored) as path:
                yield path
            return
        size = stored.manifest.file_bytes
        with self._host.opened(digest, size, lambda out: self._store.copy(stored, out)) as path:
            if path is not None:
                yield path
                return
        with self._store.opened(stored) as path:
            yield path

    def fetch(self, digest: str) -> None:
        """Bring its file to the disk, if it is known and remote. Raises BadAdapter."""
        if (stored := self._stored.get(digest)) is not None:
            self._store.fetch(stored)

    def forget(self, digest: str) -> None:
        """The adapter is gone for good."""
        self._stored.pop(digest, None)
        if self._host is not None:
            self._host.forget(digest)

    @property
    def trust_stamp(self) -> object:
        """What changes when the store may trust others than before."""
        return getattr(self._store, "trust_stamp", None)

    @property
    def note(self) -> str:
        """What is wrong with the remote; "" if nothing is, or there is none."""
        return str(getattr(self._store, "note", ""))

    @property
    def host(self) -> tuple[int, int]:
        """Bytes in host memory, and loads that came from there."""
        return (self._host.used_bytes, self._host.hits) if self._host is not None else (0, 0)

    def check(self) -> None:
        """Raise RuntimeError if the books do not add up."""
        if self._host is not None:
            self._host.check()
