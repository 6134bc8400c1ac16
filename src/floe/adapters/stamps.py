"""Files of the store: whether they are as they were, and copies hashed in one reading."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from floe.core.adapter import StoredAdapter
from floe.core.errors import BadAdapter


def copy_hashed(path: Path, out: BinaryIO, *, name: str) -> str:
    """Copy a file and give the hex sha256 of the bytes that were copied. Raises BadAdapter."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
    except FileNotFoundError as error:
        raise BadAdapter(f"adapter {name!r}: its file {path} is gone. Add it again") from error
    return digest.hexdigest()


FileStamp = tuple[int, ...]


def stamp(path: Path) -> FileStamp:
    """What changes when somebody writes the file or puts another, or a link, in its place."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    return (
        *(status.st_mode, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    )


def stamps(manifest: Path, stored: StoredAdapter) -> tuple[FileStamp, ...]:
    """Of everything that an entry's check looks at."""
    return tuple(stamp(path) for path in (manifest, stored.folder, stored.gguf))


def is_there(path: Path) -> bool:
    """Whether a file is at `path`; False for what could not be a path at all."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that could be no file
        return False


def fingerprint(path: Path) -> tuple[int, int, int, int]:
    """What changes when the file is written while it is read. Raises FileNotFoundError."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
