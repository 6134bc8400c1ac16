"""Signed versions of each name: versions/NAME/000001.json, written before the name points there.

Entries stay, for they say which version was the newest; of their files the last few are kept.
"""

from __future__ import annotations

from pathlib import Path

from floe.adapters.manifest import Record, read_record, write_record
from floe.core.errors import BadAdapter, Untrusted

KEPT = 5
"""So many versions of a name can be gone back to."""


class History:
    """The versions under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def records(self, name: str) -> tuple[Record, ...]:
        """Every version of the name, oldest first. Raises BadAdapter for a damaged entry."""
        return tuple(read_record(path) for path in sorted((self._folder / name).glob("[!.]*.json")))

    def highest(self, name: str) -> int:
        """The number of the newest version; 0 where there is none."""
        names = [path.stem for path in (self._folder / name).glob("[!.]*.json")]
        return max((int(stem) for stem in names if stem.isdigit()), default=0)

    def at(self, name: str, version: int) -> Record | None:
        """That version, if it was here. Raises BadAdapter for a damaged entry."""
        path = self._path(name, version)
        return read_record(path) if path.is_file() else None

    def check(self, record: Record) -> None:
        """Whether the version may come after those that were here.

        Raises:
            Untrusted: an older one, or another one of the same number (replayed, bug-log C07).
        """
        if record.seal is None:
            return
        name, version = record.manifest.name, record.seal.statement.version
        newest = self.highest(name)
        if version < newest:
            raise Untrusted(
                f"adapter {name!r}: this is version {version}, and version {newest} was here. An "
                "older one comes back only by: floe fed rollback"
            )
        known = self.at(name, version)
        if known is not None and known.manifest.digest != record.manifest.digest:
            raise Untrusted(
                f"adapter {name!r}: its publisher signed two different versions {version}"
            )

    def add(self, record: Record) -> None:
        """Write a signed version down; nothing for one that nobody signed."""
        if record.seal is not None:
            path = self._path(record.manifest.name, record.seal.statement.version)
            write_record(path, record)

    def kept(self, name: str) -> set[str]:
        """Digests of the versions whose files are kept."""
        paths = sorted((self._folder / name).glob("[!.]*.json"))[-KEPT:]
        found = set()
        for path in paths:
            try:
                found.add(read_record(path).manifest.digest)
            except BadAdapter:  # what cannot be read cannot be gone back to either
                continue
        return found

    def _path(self, name: str, version: int) -> Path:
        return self._folder / name / f"{version:06d}.json"
