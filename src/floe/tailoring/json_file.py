"""JSON files with a kind, a version and a digest: what a profile and a manifest are kept in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floe.core.errors import BadPlan
from floe.core.files import atomic_write

MAX_BYTES = 64 << 20


def digest_of(data: Mapping[str, Any]) -> str:
    """Hex sha256 of JSON values in canonical form."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(
    path: Path, data: Mapping[str, Any], *, kind: str, version: int, sealed: tuple[str, ...]
) -> str:
    """Write the values with kind, version and the digest of those named in `sealed`; gives it.

    Raises:
        BadPlan: a value that is not a finite number; nothing is written.
    """
    try:
        digest = digest_of({key: data[key] for key in sealed})
        whole = {"kind": kind, "version": version, **data, "digest": digest}
        text = json.dumps(whole, indent=1, allow_nan=False)
    except ValueError as error:
        raise BadPlan(f"the {kind} holds a value that is no finite number; measure again") from (
            error
        )
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")
    return digest


def read_json(path: Path, *, kind: str, version: int, sealed: tuple[str, ...]) -> dict[str, Any]:
    """The values of a file that `write_json` wrote.

    Raises:
        BadPlan: unreadable, another kind, a newer version, or changed since it was measured.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadPlan(f"{path} is larger than {MAX_BYTES} bytes, which no {kind} is")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadPlan(f"cannot read the {kind} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadPlan(f"{path} is no JSON file; make the {kind} again") from error
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise BadPlan(f"{path} is not a {kind}")
    found = data.get("version")
    if not isinstance(found, int) or not 1 <= found <= version:
        raise BadPlan(
            f"{path} has version {found!r}, this Floe reads {kind}s of version 1 to {version}. "
            "Update Floe, or make it again"
        )
    try:
        digest = digest_of({key: data[key] for key in sealed})
    except (KeyError, ValueError) as error:
        raise BadPlan(f"{path} is damaged: a value is missing or no number; make it again") from (
            error
        )
    if digest != data.get("digest"):
        raise BadPlan(
            f"{path} was changed after it was made: its digest differs. Make the {kind} again"
        )
    return data


def number(value: Any, *, least: float = -math.inf) -> float:
    """A finite number of JSON, at least `least`.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if not math.isfinite(value) or value < least:
        raise ValueError("out of range")
    return float(value)


def whole(value: Any, *, least: int = 0) -> int:
    """A whole number of JSON, at least `least`. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError("not a whole number in range")
    return value


def text(value: Any) -> str:
    """A text of JSON. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def optional_number(value: Any) -> float | None:
    """A number of 0 or more, or None. Raises ValueError for anything else."""
    return None if value is None else number(value, least=0.0)
