"""What a publisher signs about an adapter, and the signature over it.

The signed bytes are canonical JSON: sorted keys, no spaces, ASCII, after a line that names what is
signed, so that no other signed thing can pass for a statement.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from floe.core.adapter import Centroid

DOMAIN = b"floe adapter statement 1\n"

Sign = Callable[[bytes], bytes]
Figure = float | int


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One version of a published adapter.

    `digest` is the content's, `file_sha256` the GGUF's, `parent` the content digest of the version
    before ("" for the first), `restores` the version that a rollback brought back. `epsilon` is
    what its training spent at `delta`; None where nothing was promised. `evaluation` are counts
    and means of the gate.
    """

    name: str
    version: int
    digest: str
    file_sha256: str
    base: str
    shape_digest: str
    centroid_sha256: str
    created_at: str
    base_digest: str = ""
    parent: str = ""
    restores: int = 0
    round_number: int = 0
    epsilon: float | None = None
    delta: float | None = None
    evaluation: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A statement with who signed it; `signature` in base64. Not yet checked."""

    statement: Statement
    public_key: str
    signature: str

    @property
    def signature_bytes(self) -> bytes:
        """The signature; b"" where it is not base64."""
        try:
            return base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):
            return b""


def seal(statement: Statement, *, public_key: str, sign: Sign) -> Seal:
    """The statement, signed."""
    signature = base64.b64encode(sign(message(statement))).decode()
    return Seal(statement=statement, public_key=public_key, signature=signature)


def message(statement: Statement) -> bytes:
    """The bytes that are signed."""
    return DOMAIN + canonical(asdict(statement))


def canonical(data: Any) -> bytes:
    """One spelling of JSON values. Raises ValueError for NaN and infinity."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def centroid_sha256(centroid: Centroid | None) -> str:
    """Hex digest of where an adapter's prompts lie; "" where it has none."""
    if centroid is None:
        return ""
    values = [centroid.encoder_digest, [float(v) for v in centroid.vector]]
    return hashlib.sha256(canonical(values)).hexdigest()


def parse_seal(data: Any) -> Seal:
    """A seal from its JSON form.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: any other form.
    """
    stated = dict(data["statement"])
    if unknown := stated.keys() - {f.name for f in fields(Statement)}:
        raise ValueError(f"unknown in the statement: {sorted(unknown)}")
    statement = Statement(**stated)
    for name in ("version", "restores", "round_number"):
        if not _is_int(getattr(statement, name)):
            raise TypeError(name)
    for name in ("epsilon", "delta"):
        value = getattr(statement, name)
        if value is not None and not _is_number(value):
            raise TypeError(name)
    for name in ("name", "digest", "file_sha256", "base", "shape_digest", "centroid_sha256",
                 "created_at", "base_digest", "parent"):  # fmt: skip
        if not isinstance(getattr(statement, name), str):
            raise TypeError(name)
    if statement.version < 1 or statement.restores < 0:
        raise ValueError("version")
    figures = statement.evaluation.items()
    if not all(isinstance(k, str) and _is_number(v) for k, v in figures):
        raise TypeError("evaluation")
    public_key, signature = data["public_key"], data["signature"]
    if not (isinstance(public_key, str) and isinstance(signature, str)):
        raise TypeError("signature")
    return Seal(statement=statement, public_key=public_key, signature=signature)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
