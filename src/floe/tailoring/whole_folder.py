"""A folder that is there whole or not at all: written aside, then given its name."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from floe.core.errors import BadPlan, Busy, FloeError
from floe.core.files import sync_folder


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that becomes it when the block ends without an error.

    What a killed process left there is removed first. All files are on the disk before the rename.

    Raises:
        BadPlan: the target exists. Busy: another process is building it.
        FloeError: the disk is full or cannot be written; nothing is left behind.
    """
    _refuse_existing(target)
    work = target.with_name(f".{target.name}.building")
    try:
        work.mkdir(parents=True, exist_ok=True)
        held = os.open(work, os.O_RDONLY)
    except OSError as error:
        raise FloeError(f"cannot write beside {target}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another process is building {target}; wait for it") from error
        try:
            _empty(work)
            yield work
            _refuse_existing(target)
            _sync(work)
            work.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            raise FloeError(
                f"{target} could not be written: {error.strerror or error}. Nothing is left behind"
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(held)


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise BadPlan(f"{target} exists; give a new folder, or remove it first")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
