"""Adapters on disk: manifests/NAME.json points to objects/DIGEST/adapter.gguf.

Objects are written first and manifests last, each by rename, so that a kill at any moment leaves
the store as it was, with at most an object nobody points to.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from floe.adapters.digest import content_digest
from floe.adapters.formats import parse_lora_gguf, write_lora_gguf
from floe.adapters.lora import LoraTensors
from floe.adapters.manifest import Record, read_record, write_record
from floe.adapters.source import Source, existing, read_source
from floe.adapters.stamps import FileStamp, copy_hashed, fingerprint, is_there, stamp, stamps
from floe.core.adapter import AdapterManifest, Centroid, StoredAdapter
from floe.core.errors import BadAdapter, BadRequest, FloeError, NotFound
from floe.core.files import atomic_write, safe_name, sha256_file, sync_folder
from floe.core.model import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in the store: `stored` if it can be served, else the reason why not."""

    name: str
    state: Literal["registered", "failed"]
    reason: str = ""
    stored: StoredAdapter | None = None


class AdapterStore:
    """The adapters of one model under `root`; safe for several threads and processes."""

    def __init__(self, root: Path, model: ModelInfo, *, reserved: Collection[str] = ()) -> None:
        """`reserved`: names that requests use for something else, besides "auto" and the base's."""
        self._root, self._model = root, model
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
    ) -> StoredAdapter:
        """Read, check and store the adapter at `source` (a PEFT folder or a GGUF file).

        The same content under the same name is no change. `name` defaults to the source's.

        Raises:
            BadAdapter: it cannot be applied to this model; nothing was changed.
            BadRequest: a name that is not allowed, or taken by other content (without `replace`).
            FloeError: it cannot be written, e.g. because the disk is full; nothing was changed.
        """
        source = existing(source)
        default = source.name if source.is_dir() else source.stem
        name = safe_name(default if name is None else name, what="adapter")
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
                return self._stored(self._refreshed(old, read, description))
            if self._path(name).exists() and not same and not replace:
                raise BadRequest(
                    f"an adapter named {name!r} with other content, or a damaged one, is in the "
                    "store. Choose another with --name, or add --replace",
                    param="name",
                )
            return self._stored(self._written(name, digest, read, description))

    def _written(self, name: str, digest: str, read: Source, description: str) -> Record:
        gguf = self._objects / digest / "adapter.gguf"
        try:
            write_lora_gguf(gguf, read.lora, self._model.architecture)
            sync_folder(self._objects)
            record = self._new_record(name, digest, read, description, gguf)
            write_record(self._path(name), record)
        except OSError as error:
            self._sweep()
            raise FloeError(
                f"adapter {name!r} could not be written to {self._objects.parent}: "
                f"{error.strerror}. Nothing was changed"
            ) from error
        self._sweep()
        return record

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
        """
        named = self._entry(name) if is_there(self._path(name)) else None
        if named is not None and named.state == "failed":
            raise BadAdapter(named.reason)
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
            write_record(self._path(manifest.name), record)
            self._sweep()

    def set_centroid(self, name: str, centroid: Centroid | None) -> StoredAdapter:
        """Store where the adapter's prompts lie. Raises as `get`."""
        with self._lock():
            self.get(name)
            record = read_record(self._path(name))
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

    def _new_record(
        self, name: str, digest: str, read: Source, description: str, gguf: Path
    ) -> Record:
        manifest = AdapterManifest(
            name=name,
            digest=digest,
            base_model=read.lora.base or self._model.name,
            architecture=self._model.architecture,
            rank=read.lora.rank,
            modules=len(read.lora.pairs),
            file_bytes=gguf.stat().st_size,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            description=description or read.description,
            centroid=read.centroid,
            facts=read.facts,
        )
        return Record(
            manifest=manifest, file_sha256=sha256_file(gguf), shape_digest=self._shape_digest
        )

    def _refreshed(self, record: Record, read: Source, description: str) -> Record:
        """The entry of unchanged weights with what came newly beside them."""
        old = record.manifest
        manifest = dataclasses.replace(
            old,
            description=description or read.description or old.description,
            centroid=read.centroid or old.centroid,
            facts=read.facts,
        )
        if manifest == old:
            return record
        record = dataclasses.replace(record, manifest=manifest)
        write_record(self._path(old.name), record)
        return record

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
            if known[0] == stamps(path, known[1].stored):
                return known[1]
            self._memo.pop(name, None)
        before = stamp(path)
        try:
            safe_name(name, what="adapter")
            entry = Entry(name=name, state="registered", stored=self._checked(name))
        except (BadAdapter, BadRequest) as error:
            return Entry(name=name, state="failed", reason=error.message)
        if entry.stored is not None and stamp(path) == before:
            self._memo[name] = (stamps(path, entry.stored), entry)
        return entry

    def _checked(self, name: str) -> StoredAdapter:
        """The entry, as far as it can be checked without reading the weights."""
        path = self._path(name)
        if path.is_symlink() or path.resolve().parent != self._manifests.resolve():
            raise BadAdapter(f"adapter {name!r} is a link out of the store. Remove it")
        record = read_record(path)
        stored, manifest = self._stored(record), record.manifest
        if manifest.name != name:
            raise BadAdapter(f"{path} is the entry of {manifest.name!r}. Add the adapter again")
        if manifest.architecture != self._model.architecture or (
            record.shape_digest != self._shape_digest
        ):
            raise BadAdapter(
                f"adapter {name!r} was added for {manifest.base_model}, a model of another shape "
                f"than {self._model.name}. Serve that model, or use another store"
            )
        if stored.folder.is_symlink() or stored.gguf.is_symlink() or not stored.gguf.is_file():
            raise BadAdapter(f"adapter {name!r}: its file {stored.gguf} is gone. Add it again")
        if stored.gguf.stat().st_size != manifest.file_bytes:
            raise BadAdapter(f"adapter {name!r}: its file was changed on disk. Add it again")
        return stored

    def _sweep(self) -> None:
        """Delete what killed processes left behind. Only under the lock."""
        for folder in (self._manifests, *self._objects.iterdir()):
            for leftover in folder.glob(".*") if folder.is_dir() else ():
                if leftover.is_file() or leftover.is_symlink():
                    leftover.unlink()
        used: set[str] = set()
        for path in self._manifests.glob("*.json"):
            record = self._record_or_none(path.stem)
            if record is None:
                return  # an entry that cannot be read may still point to any of the objects
            used.add(record.manifest.digest)
        for folder in self._objects.iterdir():
            if folder.name not in used and folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time, over processes; a killed one lets go."""
        with (self._root / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def shape_digest(model: ModelInfo) -> str:
    """Hex digest over the names and shapes of a model's linear layers."""
    lines = [f"{name} {o} {i}" for name, (o, i) in sorted(model.linears.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
