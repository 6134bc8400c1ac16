"""Entries of the store: how one is made, and what must hold before it is served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from floe.adapters.manifest import Record
from floe.adapters.source import Source
from floe.core.adapter import AdapterManifest, StoredAdapter
from floe.core.errors import BadAdapter
from floe.core.files import sha256_file
from floe.core.model import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in the store: `stored` if it can be served, else the reason why not.

    `is_refused`: the reason is that it is not trusted.
    """

    name: str
    state: Literal["registered", "failed"]
    reason: str = ""
    stored: StoredAdapter | None = None
    is_refused: bool = False


def new_record(
    name: str,
    digest: str,
    read: Source,
    description: str,
    *,
    model: ModelInfo,
    shape: str,
    gguf: Path,
) -> Record:
    """The entry of what was just written to `gguf`, with the signature that came with it."""
    manifest = AdapterManifest(
        name=name,
        digest=digest,
        base_model=read.lora.base or model.name,
        architecture=model.architecture,
        rank=read.lora.rank,
        modules=len(read.lora.pairs),
        file_bytes=gguf.stat().st_size,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        description=description or read.description,
        centroid=read.centroid,
        facts=read.facts,
    )
    return Record(
        manifest=manifest,
        file_sha256=sha256_file(gguf),
        shape_digest=shape,
        seal=read.seal,
    )


def check_entry(
    record: Record, stored: StoredAdapter, *, name: str, path: Path, model: ModelInfo, shape: str
) -> None:
    """Raise BadAdapter unless the entry in `path` can be served, without reading the weights.

    `shape` is `shape_digest(model)`.
    """
    manifest = record.manifest
    if manifest.name != name:
        raise BadAdapter(f"{path} is the entry of {manifest.name!r}. Add the adapter again")
    if manifest.architecture != model.architecture or record.shape_digest != shape:
        raise BadAdapter(
            f"adapter {name!r} was added for {manifest.base_model}, a model of another shape "
            f"than {model.name}. Serve that model, or use another store"
        )
    if stored.folder.is_symlink() or stored.gguf.is_symlink() or not stored.gguf.is_file():
        raise BadAdapter(f"adapter {name!r}: its file {stored.gguf} is gone. Add it again")
    if stored.gguf.stat().st_size != manifest.file_bytes:
        raise BadAdapter(f"adapter {name!r}: its file was changed on disk. Add it again")


def shape_digest(model: ModelInfo) -> str:
    """Hex digest over the names and shapes of a model's linear layers."""
    lines = [f"{name} {o} {i}" for name, (o, i) in sorted(model.linears.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
