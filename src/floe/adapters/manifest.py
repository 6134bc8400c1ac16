"""An adapter's entry on disk: JSON with a version number, brought up to date step by step."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from floe.adapters.statement import Seal, parse_seal
from floe.core.adapter import AdapterManifest, Centroid
from floe.core.errors import BadAdapter
from floe.core.files import atomic_write

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def _unsigned(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knows signatures; what was there before has none."""
    return {**data, "seal": None}


MIGRATIONS: tuple[Migration, ...] = (_unsigned,)
"""MIGRATIONS[n] turns version n + 1 into n + 2. Only ever append."""

_MAX_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Record:
    """A manifest and what the store needs beside it.

    `file_sha256` is the GGUF's, `shape_digest` that of the model's linear layers, `seal` what a
    publisher signed, None for an adapter that nobody did.
    """

    manifest: AdapterManifest
    file_sha256: str
    shape_digest: str
    seal: Seal | None = None


def write_record(path: Path, record: Record) -> None:
    """Write the entry, whole or not at all."""
    with atomic_write(path) as file:
        file.write(json.dumps(record_data(record), indent=2, allow_nan=False).encode())


def record_data(record: Record) -> dict[str, Any]:
    """The entry as JSON values, with the version."""
    return {"version": len(MIGRATIONS) + 1, **dataclasses.asdict(record)}


def read_record(path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> Record:
    """The entry in `path`, migrated to the present version in memory.

    Raises:
        BadAdapter: unreadable, damaged, or written by a newer version.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadAdapter(f"{path} is larger than {_MAX_BYTES} bytes. Add the adapter again")
        data = json.loads(path.read_text(encoding="utf-8"))
        return parse_record(data, source=str(path), migrations=migrations)
    except OSError as error:
        raise BadAdapter(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadAdapter(f"{path} is damaged. Remove the adapter and add it again") from error


def parse_record(data: Any, *, source: str, migrations: Sequence[Migration] = MIGRATIONS) -> Record:
    """The entry in JSON values, migrated to the present version.

    Raises:
        BadAdapter: written by a newer version.
        ValueError, TypeError, KeyError, AttributeError: damaged.
    """
    version, newest = data.pop("version"), len(migrations) + 1
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise BadAdapter(
            f"{source} has version {version}, this Floe reads 1 to {newest}. Update Floe"
        )
    for step in migrations[version - 1 :]:
        data = step(data)
    return _record(data)


def centroid_of(data: Any) -> Centroid:
    """A centroid from its JSON form {"encoder_digest": text, "vector": [numbers]}.

    Raises:
        ValueError: any other form, or values that are not finite.
    """
    if not isinstance(data, dict) or not isinstance(data.get("encoder_digest"), str):
        raise ValueError('must be {"encoder_digest": text, "vector": [numbers]}')
    vector = data.get("vector")
    if not isinstance(vector, list) or not 1 <= len(vector) <= 1 << 16:
        raise ValueError("vector must be a list of 1 to 65536 numbers")
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in vector):
        raise ValueError("vector must hold finite numbers only")
    return Centroid(encoder_digest=data["encoder_digest"], vector=tuple(float(v) for v in vector))


def _record(data: dict[str, Any]) -> Record:
    fields = dict(data["manifest"])
    centroid = fields.pop("centroid", None)
    manifest = AdapterManifest(**fields, centroid=centroid_of(centroid) if centroid else None)
    for name in ("name", "digest", "base_model", "architecture", "created_at", "description"):
        if not isinstance(text := getattr(manifest, name), str):
            raise TypeError(name)
        text.encode()  # a lone surrogate could not be shown to anybody
    datetime.fromisoformat(manifest.created_at)
    for name in ("rank", "modules", "file_bytes"):
        if not isinstance(n := getattr(manifest, name), int) or isinstance(n, bool) or n <= 0:
            raise ValueError(name)
    if not isinstance(manifest.facts, dict):
        raise TypeError("facts")
    json.dumps(manifest.facts, ensure_ascii=False, allow_nan=False).encode()
    if len(manifest.digest) != 64 or not set(manifest.digest) <= set("0123456789abcdef"):
        raise ValueError("digest")  # it becomes a folder's name
    return Record(
        manifest=manifest,
        file_sha256=str(data["file_sha256"]),
        shape_digest=str(data["shape_digest"]),
        seal=parse_seal(data["seal"]) if data["seal"] is not None else None,
    )
