"""What a device takes of what a remote offers: the largest that fits, never an older version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from floe.adapters.manifest import Record
from floe.core.errors import Untrusted
from floe.core.files import atomic_write


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a device can hold of one adapter; 0 = anything."""

    rank: int = 0
    n_bytes: int = 0

    def fault(self, record: Record) -> str:
        """Why the adapter does not fit; "" if it does."""
        manifest = record.manifest
        if self.rank and manifest.rank > self.rank:
            return f"rank {manifest.rank} is above adapters.max_rank, {self.rank}"
        if self.n_bytes and manifest.file_bytes > self.n_bytes:
            return f"{manifest.file_bytes} bytes are more than the {self.n_bytes} it may have here"
        return ""


def choose(offered: Sequence[Record], *, limits: Limits) -> dict[str, Record | str]:
    """For each name its newest version in the largest rank that fits, or why none does."""
    by_name: dict[str, list[Record]] = {}
    for record in offered:
        by_name.setdefault(record.manifest.name, []).append(record)
    chosen: dict[str, Record | str] = {}
    for name, records in by_name.items():
        newest = max(version_of(r) for r in records)
        ranked = sorted(
            (r for r in records if version_of(r) == newest), key=lambda r: r.manifest.rank
        )
        fitting = [r for r in ranked if not limits.fault(r)]
        smallest = limits.fault(ranked[0])
        chosen[name] = fitting[-1] if fitting else f"it is not fetched: {smallest}"
    return chosen


def version_of(record: Record) -> int:
    """The number of its version; 0 for one that nobody signed."""
    return record.seal.statement.version if record.seal is not None else 0


class Seen:
    """The newest version of each name that was ever offered, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, record: Record) -> None:
        """Raise Untrusted for a version older than one that was seen (replayed, bug-log C07)."""
        name, newest = record.manifest.name, self._read().get(record.manifest.name, 0)
        if version_of(record) < newest:
            raise Untrusted(
                f"adapter {name!r}: the remote offers version {version_of(record)}, and version "
                f"{newest} was there before. Ask its publisher"
            )

    def note(self, records: Iterable[Record]) -> None:
        """Remember what is offered now."""
        seen = self._read()
        newer = {r.manifest.name: v for r in records if (v := version_of(r)) > 0}
        merged = seen | {n: max(v, seen.get(n, 0)) for n, v in newer.items()}
        if merged != seen:
            with atomic_write(self._path) as file:
                file.write(json.dumps(merged, sort_keys=True).encode())

    def _read(self) -> dict[str, int]:
        """Raises Untrusted where the file is damaged: what is the newest is not known then."""
        if not self._path.is_file():
            return {}
        try:
            return {str(k): int(v) for k, v in json.loads(self._path.read_bytes()).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise Untrusted(
                f"{self._path}, the versions seen, is damaged. Remove it to begin anew"
            ) from error
