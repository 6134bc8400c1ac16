"""The model folder: FLOE_HOME/models/NAME/FILE, and a record of what was checked there.

A file is trusted without reading it again while size and modification time are those of the
record; otherwise it is hashed.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from floe.core.files import atomic_write, sha256_file

_RECORD = "pulled.json"


@dataclass(frozen=True, kw_only=True)
class PulledModel:
    """A model on disk. `files` maps roles to paths; `digest` is the first file's sha256."""

    name: str
    files: Mapping[str, Path]
    digest: str
    base_names: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file as it was when its hash was taken."""

    role: str
    file_name: str
    sha256: str
    size_bytes: int
    mtime_ns: int
    source: str


@dataclass(frozen=True, kw_only=True)
class FolderRecord:
    """What `pulled.json` says; `ref` is the registry name or reference it was pulled by."""

    name: str
    ref: str
    base_names: tuple[str, ...]
    files: tuple[FileRecord, ...]

    def file(self, file_name: str) -> FileRecord | None:
        """The record of one file."""
        return next((f for f in self.files if f.file_name == file_name), None)


def models_folder(home: Path) -> Path:
    """Where model folders lie under FLOE_HOME."""
    return home / "models"


def read_record(folder: Path) -> FolderRecord | None:
    """The record of a folder; None when absent or unreadable (its files are then hashed)."""
    try:
        data = json.loads((folder / _RECORD).read_bytes())
        return FolderRecord(
            name=data["name"],
            ref=data["ref"],
            base_names=tuple(data["base_names"]),
            files=tuple(FileRecord(**f) for f in data["files"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(folder: Path, record: FolderRecord) -> None:
    """Replace the record."""
    with atomic_write(folder / _RECORD) as file:
        file.write(json.dumps(asdict(record), indent=1).encode())


def take_record(path: Path, *, role: str, source: str, sha256: str | None = None) -> FileRecord:
    """A record of `path` as it is now; hashed unless the hash was just taken."""
    stat = path.stat()
    return FileRecord(
        role=role,
        file_name=path.name,
        sha256=sha256 or sha256_file(path),
        size_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        source=source,
    )


def unchanged(path: Path, record: FileRecord) -> bool:
    """Whether the file still has the size and modification time of the record."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (record.size_bytes, record.mtime_ns)


def as_pulled(folder: Path, record: FolderRecord) -> PulledModel:
    """The record as the caller sees it."""
    return PulledModel(
        name=record.name,
        files={f.role: folder / f.file_name for f in record.files},
        digest=record.files[0].sha256,
        base_names=frozenset(record.base_names),
    )


def records(home: Path) -> list[tuple[Path, FolderRecord]]:
    """Every folder with a record, by name."""
    folders = sorted(p for p in models_folder(home).glob("[!.]*") if p.is_dir())
    return [(f, r) for f in folders if (r := read_record(f)) is not None and r.files]


@contextmanager
def locked(home: Path, name: str) -> Iterator[None]:
    """Hold the model's lock; a second process waits. The system drops it when a holder dies."""
    path = models_folder(home) / ".locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
