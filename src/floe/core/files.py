"""Files that are whole or not there: temporary file, fsync, rename."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from floe.core.errors import BadRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Hex digest of a Hugging Face folder: over the digests of its safetensors, by name.

    The same wherever a folder's model is named by its content; of no files where there is none.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(sha256_file(path).encode())
    return digest.hexdigest()


def safe_name(name: str, *, what: str) -> str:
    """`name` if it can be a single path component.

    Raises:
        BadRequest: for a separator, "..", an absolute path or an odd character (bug-log A29).
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise BadRequest(
            f"{what} name is not allowed: use letters, digits, dot, dash, underscore; "
            "start with a letter or digit; at most 64 characters",
            param=what,
        )
    return name
