"""What a remote offers: index.json beside objects/DIGEST/adapter.gguf, as in a store on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floe.adapters.digest import content_digest
from floe.adapters.formats import write_lora_gguf
from floe.adapters.manifest import Record, parse_record, record_data
from floe.adapters.revocations import signed_list
from floe.adapters.signature import SigningKey
from floe.adapters.store import AdapterStore
from floe.adapters.truncate import truncated
from floe.adapters.trust import REVOKED
from floe.adapters.versions import resigned
from floe.core.adapter import StoredAdapter
from floe.core.errors import BadAdapter, BadRequest
from floe.core.files import atomic_write, safe_name, sha256_file

INDEX = "index.json"
MAX_INDEX_BYTES = 32 << 20
_VERSION = 1


def object_name(digest: str) -> str:
    """Where an adapter's file lies below the remote's URL."""
    return f"objects/{digest}/adapter.gguf"


def publish(
    store: AdapterStore, folder: Path, *, ranks: Sequence[int] = (), key: SigningKey | None = None
) -> int:
    """Write every adapter of `store` to `folder`, files first, the index last; how many.

    The folder can then be served as it is, or be copied to a bucket or a web server. Files that
    the index no longer names stay, for those who still read the old one. For each of `ranks` every
    larger adapter is offered cut to it, too; for signed ones, and for the list of what was
    revoked, `key` signs.

    Raises:
        BadAdapter: an adapter of the store is damaged; the index was not changed.
        BadRequest: something else than a folder is there, or a signed one is to be cut without
            the key that signed it.
    """
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder; name one to publish to", param="folder")
    records, variants = [], []
    for stored in store.list():
        target = folder / object_name(stored.manifest.digest)
        with atomic_write(target) as file:
            store.copy(stored, file)
        records.append(record := store.record(stored))
        for rank in sorted({r for r in ranks if r < stored.manifest.rank}):
            variants.append(_cut(store, stored, record, folder, rank, key))
    if key is not None and (revoked := store.trust.revocations.list()):
        with atomic_write(folder / REVOKED) as file:
            file.write(signed_list(revoked, key))
    with atomic_write(folder / INDEX) as file:
        file.write(index_bytes(records, variants))
    return len(records)


def _cut(
    store: AdapterStore,
    stored: StoredAdapter,
    record: Record,
    folder: Path,
    rank: int,
    key: SigningKey | None,
) -> Record:
    """Write the adapter cut to `rank` to `folder`; its entry, signed if the whole one is."""
    if record.seal is not None and (key is None or key.public != record.seal.public_key):
        raise BadRequest(
            f"adapter {stored.manifest.name!r} is signed by {record.seal.public_key}; only that "
            "key can sign it in other ranks. Publish there, or without ranks",
            param="ranks",
        )
    lora = truncated(store.tensors(stored), rank)
    digest = content_digest(lora)
    target = folder / object_name(digest)
    write_lora_gguf(target, lora, lora.architecture)
    manifest = dataclasses.replace(
        stored.manifest, digest=digest, rank=lora.rank, file_bytes=target.stat().st_size
    )
    cut = dataclasses.replace(record, manifest=manifest, file_sha256=sha256_file(target))
    return cut if record.seal is None or key is None else resigned(cut, key)


def index_bytes(records: Sequence[Record], variants: Sequence[Record] = ()) -> bytes:
    """The index of these entries; `variants` are some of them in smaller ranks."""
    data: dict[str, Any] = {"version": _VERSION, "adapters": [record_data(r) for r in records]}
    if variants:
        data["variants"] = [record_data(r) for r in variants]
    return json.dumps(data, indent=1, allow_nan=False).encode()


def parse_index(data: bytes, *, source: str) -> tuple[Record, ...]:
    """The entries of an index: each name once, then the same in smaller ranks.

    Raises:
        BadAdapter: damaged, of a newer version, or with a name that is not allowed.
    """
    try:
        index: Any = json.loads(data)
        if index["version"] != _VERSION:
            raise BadAdapter(f"{source} has version {index['version']}. Update Floe")
        records = tuple(parse_record(entry, source=source) for entry in index["adapters"])
        names = [safe_name(r.manifest.name, what="adapter") for r in records]
        more = tuple(parse_record(entry, source=source) for entry in index.get("variants", ()))
        more = tuple(r for r in more if r.manifest.name in names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadAdapter(f"{source} is damaged. Publish the store again") from error
    except BadRequest as error:
        raise BadAdapter(f"{source} names an adapter in a way that is not allowed") from error
    if len(set(names)) < len(names):
        raise BadAdapter(f"{source} names an adapter twice. Publish the store again")
    return records + more
