"""Adapters on disk: manifests/NAME.json points to objects/DIGEST/adapter.gguf.

Objects are written first and manifests last, each by rename, so that a kill at any moment leaves
the store as it was, with at most an object nobody points to.
"""

from __future__ import annotations

import dataclasses
import fcntl
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from floe.adapters.digest import content_digest
from floe.adapters.entries import Entry, check_entry, new_record, shape_digest
from floe.adapters.formats import parse_lora_gguf, write_lora_gguf
from floe.adapters.history import History
from floe.adapters.lora import LoraTensors
from floe.adapters.manifest import Record, read_record, write_record
from floe.adapters.source import Source, existing, read_source, signed_name
from floe.adapters.stamps import FileStamp, copy_hashed, fingerprint, is_there, stamp, stamps
from floe.adapters.statement import Seal
from floe.adapters.sweep import sweep
from floe.adapters.trust import Trust
from floe.core.adapter import AdapterManifest, Centroid, StoredAdapter
from floe.core.errors import BadAdapter, BadRequest, FloeError, NotFound, Untrusted
from floe.core.files import atomic_write, safe_name, sha256_file, sync_folder
from floe.core.model import ModelInfo

Sign = Callable[[Record], Seal]


class AdapterStore:
    """The adapters of one model under `root`; safe for several threads and processes."""

    def __init__(
        self,
        root: Path,
        model: ModelInfo,
        *,
        reserved: Collection[str] = (),
        trust: Trust | None = None,
    ) -> None:
        """`reserved`: names that requests use for something else, besides "auto" and the base's.

        `trust` None is what there is without settings, its files beside the adapters.
        """
        self._root, self._model = root, model
        self.trust, self.history = trust or Trust(root / "trust"), History(root / "versions")
        self._reserved = {n.lower() for n in ("auto", model.name, *model.names, *reserved)}
        self._manifests, self._objects = root / "manifests", root / "objects"
        for folder in (self._manifests, self._objects):
            folder.mkdir(parents=True, exist_ok=True)
        self._shape_digest = shape_digest(model)
        self._memo: dict[str, tuple[tuple[FileStamp, ...], Entry]] = {}
        with self._lock():
            self._sweep()

    def add(
        self,
        source: Path,
        *,
        name: str | None = None,
        description: str = "",
        replace: bool = False,
        any_base: bool = False,
        sign: Sign | None = None,
    ) -> StoredAdapter:
        """Read, check and store the adapter at `source` (a PEFT folder or a GGUF file).

        The same content under the same name is no change. `name` defaults to the one that was
        signed, else the source's. A signature beside it (signature.json) is kept; `sign` makes a
        new one for what is stored.

        Raises:
            BadAdapter: it cannot be applied to this model; nothing was changed.
            Untrusted: it is not signed as it must be, is an older version, or was revoked.
            BadRequest: a name that is not allowed, or taken by other content (without `replace`).
            FloeError: it cannot be written, e.g. because the disk is full; nothing was changed.
        """
        source = existing(source)
        if name is None:
            name = signed_name(source) or (source.name if source.is_dir() else source.stem)
        name = safe_name(name, what="adapter")
        if name.lower() in self._reserved:
            raise BadRequest(
                f"a request for {name!r} never reaches an adapter of that name. Choose another "
                "with --name",
                param="name",
            )
        read = read_source(source, self._model, any_base=any_base)
        digest = content_digest(read.lora)
        with self._lock():
            old = self._record_or_none(name)
            same = (
                old is not None
                and (old.manifest.name, old.manifest.digest) == (name, digest)
                and old.shape_digest == self._shape_digest
            )
            if old is not None and same and self._is_whole(old):
                return self._stored(self._refreshed(old, read, description, sign))
            if self._path(name).exists() and not same and not replace:
                raise BadRequest(
                    f"an adapter named {name!r} with other content, or a damaged one, is in the "
                    "store. Choose another with --name, or add --replace",
                    param="name",
                )
            return self._stored(self._written(name, digest, read, description, sign))

    def _written(
        self, name: str, digest: str, read: Source, description: str, sign: Sign | None
    ) -> Record:
        gguf = self._objects / digest / "adapter.gguf"
        try:
            write_lora_gguf(gguf, read.lora, self._model.architecture)
            sync_folder(self._objects)
            record = new_record(
                name,
                digest,
                read,
                description,
                model=self._model,
                shape=self._shape_digest,
                gguf=gguf,
            )
            record = self._put(record, sign)
        except Untrusted:
            self._sweep()
            raise
        except OSError as error:
            self._sweep()
            raise FloeError(
                f"adapter {name!r} could not be written to {self._objects.parent}: "
                f"{error.strerror}. Nothing was changed"
            ) from error
        self._sweep()
        return record

    def _put(self, record: Record, sign: Sign | None) -> Record:
        """Let the name point to the record, as far as it is trusted. Only under the lock."""
        if sign is not None:
            record = dataclasses.replace(record, seal=sign(record))
        self.trust.check(record)
        self.history.check(record)
        self.history.add(record)
        write_record(self._path(record.manifest.name), record)
        return record

    def current(self, name: str) -> Record | None:
        """What the name points to, trusted or not; None where there is nothing readable."""
        return self._record_or_none(name)

    def has_file(self, record: Record) -> bool:
        """Whether the entry's file is here, by its size."""
        path = self._stored(record).gguf
        return path.is_file() and path.stat().st_size == record.manifest.file_bytes

    def point(self, record: Record, sign: Sign) -> StoredAdapter:
        """Let a name mean content whose file is still here, under a new signature.

        Raises:
            NotFound: the file is gone. Untrusted: as `add`.
        """
        with self._lock():
            if not self._is_whole(record):
                raise NotFound(
                    f"the file of that version of {record.manifest.name!r} is not kept any more"
                )
            record = self._put(record, sign)
            self._sweep()
            return self._stored(record)

    def list(self) -> tuple[StoredAdapter, ...]:
        """Every adapter that can be served, by name."""
        return tuple(e.stored for e in self.entries() if e.stored is not None)

    def entries(self) -> tuple[Entry, ...]:
        """Every name in the store; one that is broken disturbs no other (bug-log A07, A34)."""
        return tuple(self._entry(path.stem) for path in sorted(self._manifests.glob("[!.]*.json")))

    def get(self, name: str) -> StoredAdapter:
        """The adapter of that name.

        Raises:
            NotFound: no such name, or one that could not be one (bug-log A29).
            BadAdapter: it is there and broken.
        """
        try:
            path = self._path(safe_name(name, what="adapter"))
        except BadRequest as error:
            raise NotFound("no adapter of that name: it is not a valid name") from error
        if not path.is_file() or path.resolve().parent != self._manifests.resolve():
            known = ", ".join(e.name for e in self.entries()) or "none"
            raise NotFound(f"no adapter named {name!r} in the store; there are: {known}")
        return self._checked(name)

    def find(self, name: str, digest: str) -> StoredAdapter:
        """The adapter with that content, under that name if it still has it.

        Raises:
            BadAdapter: it is broken, was removed, or its name now means other content.
            Untrusted: it was revoked, or is not signed as it must be.
        """
        named = self._entry(name) if is_there(self._path(name)) else None
        if named is not None and named.state == "failed":
            raise Untrusted(named.reason) if named.is_refused else BadAdapter(named.reason)
        if named is not None and named.stored and named.stored.manifest.digest == digest:
            return named.stored
        for stored in self.list():
            if stored.manifest.digest == digest:
                return stored
        raise BadAdapter(f"adapter {name!r} was removed or replaced in the store. Ask again")

    def remove(self, name: str) -> None:
        """Take the name out of the store; its file goes when no other name has the content.

        Raises:
            NotFound: no such name.
        """
        with self._lock():
            try:
                path = self._path(safe_name(name, what="adapter"))
                path.unlink()
            except (BadRequest, FileNotFoundError) as error:
                raise NotFound("no adapter of that name in the store; nothing removed") from error
            sync_folder(self._manifests)
            self._sweep()

    def put_back(self, manifest: AdapterManifest, gguf: Path) -> None:
        """Let a name mean again what it meant, with a copy of the file it had then."""
        with self._lock():
            with atomic_write(self._objects / manifest.digest / "adapter.gguf") as file:
                file.write(gguf.read_bytes())
            sync_folder(self._objects)
            record = Record(
                manifest=manifest, file_sha256=sha256_file(gguf), shape_digest=self._shape_digest
            )
            signed = [r for r in self.history.records(manifest.name) if r.manifest == manifest]
            write_record(self._path(manifest.name), signed[-1] if signed else record)
            self._sweep()

    def set_centroid(self, name: str, centroid: Centroid | None) -> StoredAdapter:
        """Store where the adapter's prompts lie.

        Raises as `get`, and Untrusted for a signed one: its centroid is part of what was signed.
        """
        with self._lock():
            self.get(name)
            record = read_record(self._path(name))
            if record.seal is not None and centroid != record.manifest.centroid:
                raise Untrusted(
                    f"adapter {name!r} is signed together with its centroid. Publish it again"
                )
            manifest = dataclasses.replace(record.manifest, centroid=centroid)
            record = dataclasses.replace(record, manifest=manifest)
            write_record(self._path(name), record)
            return self._stored(record)

    @contextmanager
    def opened(self, stored: StoredAdapter) -> Iterator[Path]:
        """The GGUF's path, checked before and after the block that loads it (bug-log A05).

        Raises:
            BadAdapter: the file is gone, is not what was added, or changed while it was loaded.
        """
        record = self._record_of(stored)
        path, name = stored.gguf, stored.manifest.name
        try:
            before = fingerprint(path)
            if sha256_file(path) != record.file_sha256:
                raise BadAdapter(f"adapter {name!r}: its file was changed on disk. Add it again")
            yield path
            after = fingerprint(path)
        except FileNotFoundError as error:
            raise BadAdapter(f"adapter {name!r}: its file {path} is gone. Add it again") from error
        if after != before:
            raise BadAdapter(f"adapter {name!r}: its file changed while it was loaded. Try again")

    def copy(self, stored: StoredAdapter, out: BinaryIO) -> None:
        """Write the GGUF to `out`, checked in the same reading: those bytes are the adapter's.

        Raises:
            BadAdapter: the file is gone, or not what was added; what was written is void.
        """
        name = stored.manifest.name
        if copy_hashed(stored.gguf, out, name=name) != self._record_of(stored).file_sha256:
            raise BadAdapter(f"adapter {name!r}: its file was changed on disk. Add it again")

    @property
    def trust_stamp(self) -> object:
        """What changes when an adapter that was trusted may not be any more."""
        return self.trust.stamp

    def tier(self, stored: StoredAdapter) -> Literal["disk", "remote"]:
        """Where its file lies: always here."""
        del stored
        return "disk"

    def fetch(self, stored: StoredAdapter) -> None:
        """Bring its file to the disk: it is there."""
        del stored

    def record(self, stored: StoredAdapter) -> Record:
        """The adapter's entry. Raises BadAdapter if it is gone or means other content now."""
        return self._record_of(stored)

    def tensors(self, stored: StoredAdapter) -> LoraTensors:
        """The adapter's arrays, from the bytes that were added. Raises BadAdapter as `opened`."""
        with self.opened(stored) as path:
            return parse_lora_gguf(path.read_bytes(), str(path), self._model, any_base=True)

    def _refreshed(
        self, record: Record, read: Source, description: str, sign: Sign | None
    ) -> Record:
        """The entry of unchanged weights with what came newly beside them."""
        old = record.manifest
        manifest = dataclasses.replace(
            old,
            description=description or read.description or old.description,
            centroid=read.centroid or old.centroid,
            facts=read.facts,
        )
        seal = read.seal or (record.seal if manifest.centroid == old.centroid else None)
        if manifest == old and seal == record.seal and sign is None:
            self.trust.check(record)
            return record
        return self._put(dataclasses.replace(record, manifest=manifest, seal=seal), sign)

    def _path(self, name: str) -> Path:
        return self._manifests / f"{name}.json"

    def _stored(self, record: Record) -> StoredAdapter:
        return StoredAdapter(
            manifest=record.manifest, folder=self._objects / record.manifest.digest
        )

    def _record_or_none(self, name: str) -> Record | None:
        """The entry of a name that is about to be written; a damaged one counts as none."""
        try:
            return read_record(self._path(name))
        except BadAdapter:
            return None

    def _record_of(self, stored: StoredAdapter) -> Record:
        name = stored.manifest.name
        path = self._path(name)
        record = read_record(path) if path.is_file() else None
        if record is None or record.manifest.digest != stored.manifest.digest:
            raise BadAdapter(f"adapter {name!r} was removed or replaced in the store. Ask again")
        return record

    def _is_whole(self, record: Record) -> bool:
        path = self._stored(record).gguf
        return path.is_file() and sha256_file(path) == record.file_sha256

    def _entry(self, name: str) -> Entry:
        """The entry, read again only if one of its files changed."""
        path = self._path(name)
        if (known := self._memo.get(name)) is not None and known[1].stored is not None:
            if known[0] == (*stamps(path, known[1].stored), *self.trust.stamp):
                return known[1]
            self._memo.pop(name, None)
        before, trusted = stamp(path), self.trust.stamp
        try:
            safe_name(name, what="adapter")
            entry = Entry(name=name, state="registered", stored=self._checked(name))
        except (BadAdapter, BadRequest) as error:
            refused = isinstance(error, Untrusted)
            return Entry(name=name, state="failed", reason=error.message, is_refused=refused)
        if entry.stored is not None and stamp(path) == before:
            self._memo[name] = ((*stamps(path, entry.stored), *trusted), entry)
        return entry

    def _checked(self, name: str) -> StoredAdapter:
        """The entry, as far as it can be checked without reading the weights."""
        path = self._path(name)
        if path.is_symlink() or path.resolve().parent != self._manifests.resolve():
            raise BadAdapter(f"adapter {name!r} is a link out of the store. Remove it")
        record = read_record(path)
        stored = self._stored(record)
        check_entry(
            record, stored, name=name, path=path, model=self._model, shape=self._shape_digest
        )
        self.trust.check(record)
        return stored

    def _sweep(self) -> None:
        """Delete what killed processes left behind. Only under the lock."""
        sweep(self._manifests, self._objects, self.history)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time, over processes; a killed one lets go."""
        with (self._root / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
