"""A store with a remote behind it: adapters that are listed at once and fetched when needed.

What was fetched lies in `folder`, at most `disk_bytes` of it; the least recently opened goes
first. Only such files are ever deleted here, never one that the user added (bug-log F14). A file
is written beside its place, checked against the index and the model, and renamed, so a kill at any
moment leaves whole files only. The last index that was read serves while the remote is away.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from floe.adapters.entries import Entry, shape_digest
from floe.adapters.fitting import Limits, Seen, choose
from floe.adapters.formats import parse_lora_gguf
from floe.adapters.lora import LoraTensors
from floe.adapters.manifest import Record
from floe.adapters.remote import Remote
from floe.adapters.remote_index import INDEX, MAX_INDEX_BYTES, object_name, parse_index
from floe.adapters.revocations import MAX_BYTES, read_signed
from floe.adapters.stamps import copy_hashed
from floe.adapters.store import AdapterStore
from floe.adapters.trust import REVOKED
from floe.core.adapter import StoredAdapter
from floe.core.errors import BadAdapter, FloeError, NotFound, Untrusted
from floe.core.files import atomic_write, sync_folder
from floe.core.model import ModelInfo

log = logging.getLogger("floe.adapters")


class RemoteStore:
    """`local` and, for names that it has not, the remote's adapters for this model."""

    def __init__(
        self,
        *,
        local: AdapterStore,
        remote: Remote,
        folder: Path,
        model: ModelInfo,
        disk_bytes: int,
        pinned: Collection[str] = (),
        max_rank: int = 0,
        max_bytes: int = 0,
    ) -> None:
        """Reads the index; `note` says if that did not work. `pinned` names are never deleted.

        Of an adapter that is offered in several ranks the largest within `max_rank` and
        `max_bytes` (0 = no limit) is taken; one that does not fit is listed with the reason.
        """
        self._local, self._remote, self._folder, self._model = local, remote, folder, model
        self._disk_bytes, self._pinned = disk_bytes, frozenset(pinned)
        self._objects = folder / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._books, self._fetching = threading.Lock(), threading.Lock()
        self._open: Counter[str] = Counter()
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None
        self._limits = Limits(rank=max_rank, n_bytes=max_bytes)
        self._seen = Seen(folder / "versions.json")
        self._records: dict[str, Record] = {}
        self._refused: dict[str, Entry] = {}
        self.note = ""
        self.refresh()
        with self._turn():
            self._sweep()

    def refresh(self) -> None:
        """Read the remote's index again, or if that fails the last one that was read."""
        path = self._folder / INDEX
        try:
            data = self._remote.read(INDEX, max_bytes=MAX_INDEX_BYTES)
            records = parse_index(data, source=f"{self._remote.url}/{INDEX}")
            with atomic_write(path) as file:
                file.write(data)
            self.note = ""
        except (FloeError, OSError) as error:
            why = error.message if isinstance(error, FloeError) else f"{path}: {error.strerror}"
            if self._records:
                self.note = f"adapters.remote: {why}; the last list is used"
                return
            self.note = f"adapters.remote: {why}"
            log.warning("%s", self.note)
            try:
                records = parse_index(path.read_bytes(), source=str(path))
            except (OSError, BadAdapter):
                return
        shape = shape_digest(self._model)
        offered = [r for r in records if r.shape_digest == shape]
        self._take_revocations()
        chosen = choose(offered, limits=self._limits)
        self._records, self._refused = {}, {}
        for name, found in chosen.items():
            if isinstance(found, str):
                self._refused[name] = Entry(name=name, state="failed", reason=found)
                continue
            try:
                self._check_trust(found)
                self._seen.check(found)
                self._records[name] = found
            except Untrusted as error:
                self._refused[name] = Entry(
                    name=name, state="failed", reason=error.message, is_refused=True
                )
        if self._records:
            self._seen.note(self._records.values())

    @property
    def trust_stamp(self) -> object:
        """What changes when an adapter that was trusted may not be any more."""
        return self._local.trust_stamp

    def _check_trust(self, record: Record) -> None:
        self._local.trust.check(record, is_remote=True)

    def _take_revocations(self) -> None:
        """What the remote's publisher revoked, if a trusted key signed it."""
        trust, source = self._local.trust, f"{self._remote.url}/{REVOKED}"
        try:
            data = self._remote.read(REVOKED, max_bytes=MAX_BYTES)
        except NotFound:
            return
        except BadAdapter as error:
            self.note = f"adapters.remote: {error.message}"
            return
        try:
            key, entries = read_signed(data, source=source)
            if trust.trusts(key) and not trust.revocations.reason(digest="", key=key):
                trust.revocations.add(entries)
            else:
                self.note = f"adapters.remote: {source} is signed by {key}, which is not trusted"
        except FloeError as error:
            self.note = f"adapters.remote: {error.message}"

    def watch(self, every_s: float) -> None:
        """Read the index again every so often, in a thread, until `close`."""

        def work() -> None:
            while not self._closed.wait(every_s):
                try:
                    self.refresh()
                except Exception as error:  # a watcher that dies would go unnoticed (F07)
                    log.exception("adapters.remote: the list could not be read again")
                    self.note = f"adapters.remote: reading the list failed: {type(error).__name__}"

        self._watcher = threading.Thread(target=work, name="floe-remote", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Stop watching; a reading under way is waited for a little."""
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join(timeout=2.0)

    def entries(self) -> tuple[Entry, ...]:
        """Every name; one that both have is the local one."""
        local = self._local.entries()
        names = {entry.name for entry in local}
        far = {name: self._entry(record) for name, record in self._records.items()} | self._refused
        return (*local, *(far[name] for name in sorted(far.keys() - names)))

    def _entry(self, record: Record) -> Entry:
        name = record.manifest.name
        try:
            self._check_trust(record)
        except Untrusted as error:
            return Entry(name=name, state="failed", reason=error.message, is_refused=True)
        return Entry(name=name, state="registered", stored=self._stored(record))

    def list(self) -> tuple[StoredAdapter, ...]:
        """Every adapter that can be served, as far as is known without fetching it."""
        return tuple(e.stored for e in self.entries() if e.stored is not None)

    def find(self, name: str, digest: str) -> StoredAdapter:
        """The adapter with that content. Raises BadAdapter, Untrusted as `AdapterStore.find`."""
        record = self._record(digest)
        if record is None or any(
            s.manifest.digest == digest or s.manifest.name == name for s in self._local.list()
        ):
            return self._local.find(name, digest)
        self._check_trust(record)
        return self._stored(record)

    def tier(self, stored: StoredAdapter) -> Literal["disk", "remote"]:
        """Whether it would have to be fetched."""
        return "disk" if not self._is_far(stored) or stored.gguf.is_file() else "remote"

    @contextmanager
    def opened(self, stored: StoredAdapter) -> Iterator[Path]:
        """Its GGUF, fetched first if need be, its bytes checked. Raises BadAdapter."""
        if not self._is_far(stored):
            with self._local.opened(stored) as path:
                yield path
            return
        with self._held(stored) as record:
            digest = hashlib.sha256()
            with stored.gguf.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            self._check(record, digest.hexdigest())
            yield stored.gguf

    def copy(self, stored: StoredAdapter, out: BinaryIO) -> None:
        """Write its bytes to `out`, checked in the same reading. Raises BadAdapter."""
        if not self._is_far(stored):
            self._local.copy(stored, out)
            return
        with self._held(stored) as record:
            self._check(record, copy_hashed(stored.gguf, out, name=record.manifest.name))

    def tensors(self, stored: StoredAdapter) -> LoraTensors:
        """The adapter's arrays, from checked bytes. Raises BadAdapter."""
        with self.opened(stored) as path:
            return parse_lora_gguf(path.read_bytes(), str(path), self._model, any_base=True)

    def fetch(self, stored: StoredAdapter) -> None:
        """Bring its file to the disk, if it is not there. Raises BadAdapter."""
        if self._is_far(stored):
            with self._held(stored):
                return

    @property
    def fetched_bytes(self) -> int:
        """Bytes on disk that came from the remote."""
        return sum(path.stat().st_size for path in self._files())

    # --- fetching

    @contextmanager
    def _held(self, stored: StoredAdapter) -> Iterator[Record]:
        """Its file is on disk and stays there while the block runs."""
        digest, name = stored.manifest.digest, stored.manifest.name
        record = self._record(digest)
        if record is None:
            raise BadAdapter(f"adapter {name!r} is no longer in the remote. Ask again")
        with self._books:
            self._open[digest] += 1
        try:
            if not stored.gguf.is_file():
                with self._turn():
                    if not stored.gguf.is_file():
                        self._fetch(record)
            os.utime(stored.gguf)
            yield record
        except FileNotFoundError as error:  # another process made room
            raise BadAdapter(f"adapter {name!r}: its file is gone. Try again") from error
        finally:
            with self._books:
                self._open[digest] -= 1

    def _fetch(self, record: Record) -> None:
        manifest = record.manifest
        if not self._make_room(manifest.file_bytes):
            raise BadAdapter(
                f"adapter {manifest.name!r} needs {manifest.file_bytes} bytes on disk; "
                f"adapters.disk_bytes is {self._disk_bytes} and the rest is in use. Raise it"
            )
        part = self._objects / f".{manifest.digest}.part"
        try:
            with part.open("wb") as file:
                source = object_name(manifest.digest)
                self._remote.copy(source, file, max_bytes=manifest.file_bytes)
                file.flush()
                os.fsync(file.fileno())
            data = part.read_bytes()
            self._check(record, hashlib.sha256(data).hexdigest())
            parse_lora_gguf(data, manifest.name, self._model, any_base=True)
            target = self._stored(record).gguf
            target.parent.mkdir(exist_ok=True)
            part.replace(target)
            sync_folder(target.parent)
            sync_folder(self._objects)
        except FloeError as error:
            message = f"adapter {manifest.name!r} could not be fetched: {error.message}"
            raise BadAdapter(message) from error
        except OSError as error:
            message = f"adapter {manifest.name!r} could not be written: {error.strerror}"
            raise BadAdapter(message) from error
        finally:
            part.unlink(missing_ok=True)

    def _check(self, record: Record, sha256: str) -> None:
        """Raise BadAdapter unless those are the bytes; a wrong file goes, to be fetched again."""
        if sha256 != record.file_sha256:
            self._stored(record).gguf.unlink(missing_ok=True)
            raise BadAdapter(
                f"adapter {record.manifest.name!r}: its bytes are not those of the index. Try again"
            )

    def _make_room(self, n_bytes: int) -> bool:
        """Delete the least recently opened until `n_bytes` fit; not what is open or pinned."""
        pinned = {r.manifest.digest for n, r in self._records.items() if n in self._pinned}
        files = sorted(self._files(), key=lambda p: p.stat().st_mtime_ns)
        total = sum(path.stat().st_size for path in files)
        with self._books:  # nobody begins to read meanwhile
            keep = pinned | {d for d, n in self._open.items() if n}
            free = [p for p in files if p.parent.name not in keep]
            if total - sum(p.stat().st_size for p in free) + n_bytes > self._disk_bytes:
                return False
            for path in free:
                if total + n_bytes <= self._disk_bytes:
                    break
                total -= path.stat().st_size
                shutil.rmtree(path.parent)
        return True

    def _sweep(self) -> None:
        """Delete what killed processes left behind."""
        for part in self._objects.glob(".*.part"):
            part.unlink()
        for folder in self._objects.iterdir():
            if folder.is_dir() and not (folder / "adapter.gguf").is_file():
                shutil.rmtree(folder)
        self._make_room(0)

    def _files(self) -> Iterator[Path]:
        yield from self._objects.glob("*/adapter.gguf")

    def _record(self, digest: str) -> Record | None:
        return next((r for r in self._records.values() if r.manifest.digest == digest), None)

    def _stored(self, record: Record) -> StoredAdapter:
        return StoredAdapter(
            manifest=record.manifest, folder=self._objects / record.manifest.digest
        )

    def _is_far(self, stored: StoredAdapter) -> bool:
        return stored.folder.parent == self._objects

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One process and one thread at a time; a killed one lets go."""
        with self._fetching, (self._folder / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
