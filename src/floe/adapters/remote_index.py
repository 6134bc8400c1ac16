"""What a remote offers: index.json beside objects/DIGEST/adapter.gguf, as in a store on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floe.adapters.manifest import Record, parse_record, record_data
from floe.adapters.store import AdapterStore
from floe.core.errors import BadAdapter, BadRequest
from floe.core.files import atomic_write, safe_name

INDEX = "index.json"
MAX_INDEX_BYTES = 32 << 20
_VERSION = 1


def object_name(digest: str) -> str:
    """Where an adapter's file lies below the remote's URL."""
    return f"objects/{digest}/adapter.gguf"


def publish(store: AdapterStore, folder: Path) -> int:
    """Write every adapter of `store` to `folder`, files first, the index last; how many.

    The folder can then be served as it is, or be copied to a bucket or a web server. Files that
    the index no longer names stay, for those who still read the old one.

    Raises:
        BadAdapter: an adapter of the store is damaged; the index was not changed.
        BadRequest: something else than a folder is there.
    """
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder; name one to publish to", param="folder")
    records = []
    for stored in store.list():
        target = folder / object_name(stored.manifest.digest)
        with atomic_write(target) as file:
            store.copy(stored, file)
        records.append(store.record(stored))
    with atomic_write(folder / INDEX) as file:
        file.write(index_bytes(records))
    return len(records)


def index_bytes(records: Sequence[Record]) -> bytes:
    """The index of these entries."""
    data = {"version": _VERSION, "adapters": [record_data(r) for r in records]}
    return json.dumps(data, indent=1, allow_nan=False).encode()


def parse_index(data: bytes, *, source: str) -> tuple[Record, ...]:
    """The entries of an index, each name once.

    Raises:
        BadAdapter: damaged, of a newer version, or with a name that is not allowed.
    """
    try:
        index: Any = json.loads(data)
        if index["version"] != _VERSION:
            raise BadAdapter(f"{source} has version {index['version']}. Update Floe")
        records = tuple(parse_record(entry, source=source) for entry in index["adapters"])
        names = [safe_name(r.manifest.name, what="adapter") for r in records]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadAdapter(f"{source} is damaged. Publish the store again") from error
    except BadRequest as error:
        raise BadAdapter(f"{source} names an adapter in a way that is not allowed") from error
    if len(set(names)) < len(names):
        raise BadAdapter(f"{source} names an adapter twice. Publish the store again")
    return records
