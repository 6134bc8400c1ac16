"""What the router learned, on disk: a safetensors file, checked by digest, replaced in one step.

The header says which version, base model, encoder and width it belongs to. A file that does not
belong here or is damaged is never overwritten: it is kept beside under another name (B35).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from floe.core.errors import BadConfig
from floe.core.files import atomic_write

VERSION = 1
MAX_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Belongs:
    """What a state is valid for: the base model, the embedding and the context's width."""

    model: str
    encoder: str
    width: int


def save_state(
    path: Path, belongs: Belongs, plain: Mapping[str, Any], tables: Mapping[str, NDArray[Any]]
) -> None:
    """Replace the file; readable by its owner only. Raises OSError when it cannot be written."""
    header = {
        "version": VERSION,
        "model": belongs.model,
        "encoder": belongs.encoder,
        "width": belongs.width,
        "tables": _digest(tables),
        "plain": plain,
    }
    arrays = {name: np.ascontiguousarray(table) for name, table in tables.items()}
    data = save(arrays, metadata={"floe": json.dumps(header)})
    with atomic_write(path) as file:
        file.write(data)


def load_state(path: Path, belongs: Belongs) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The plain values and tables of a file.

    Raises:
        BadConfig: it is damaged, of another version, or belongs to something else; says which.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadConfig(f"{path} is too large for a state of the router")
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["floe"])
        version = header["version"]
        found = {name: header[name] for name in ("model", "encoder", "width")}
        plain, expected = dict(header["plain"]), header["tables"]
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadConfig(f"{path} is no state of the router, or it is damaged") from error
    if version != VERSION:
        raise BadConfig(f"{path} has version {version}; this Floe reads version {VERSION}")
    for name, mine in (("model", belongs.model), ("encoder", belongs.encoder)):
        if found[name] != mine:
            raise BadConfig(f"{path} was learned with another {name}; learning starts anew")
    if found["width"] != belongs.width:
        raise BadConfig(
            f"{path} was learned with routing.context_width {found['width'] - 1}; "
            f"it is {belongs.width - 1} now"
        )
    try:
        tables = load(data)
    except (SafetensorError, ValueError) as error:
        raise BadConfig(f"{path} is damaged: its tables cannot be read") from error
    if _digest(tables) != expected:
        raise BadConfig(f"{path} is damaged: its digest does not match")
    return plain, tables


def keep_aside(path: Path) -> Path:
    """Rename a file that cannot be used; returns its new name, which no file had before."""
    n = 1
    while (other := path.with_name(f"{path.name}.unused-{n}")).exists():
        n += 1
    path.rename(other)
    return other


def _digest(tables: Mapping[str, NDArray[Any]]) -> str:
    whole = hashlib.sha256()
    for name in sorted(tables):
        table = np.ascontiguousarray(tables[name])
        whole.update(f"{name} {table.dtype.str} {table.shape}\n".encode())
        whole.update(table.tobytes())
    return whole.hexdigest()
