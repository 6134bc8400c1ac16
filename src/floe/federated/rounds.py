"""A round: who is asked, with what, and what came back.

Bytes of a task: MAGIC, u32 length of the header, header (JSON), the adapter to start from.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from floe.core.errors import BadRequest, FloeError

Kind = Literal["train", "judge"]
MAGIC, FAILED = b"FLOETASK", b"FLOEFAIL"
MAX_HEADER_BYTES = 65536
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a stranger's JSON may raise: infinity for a whole number, a thousand brackets."""
_WORD = re.compile(r"[a-z0-9_-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A round that has begun. `nonce` is new at each attempt; `clusters` is where each device
    stood before it, "" for nowhere yet."""

    round_number: int
    nonce: str
    selected: tuple[str, ...]
    clusters: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"selected": list(self.selected), "clusters": dict(self.clusters)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Opened:
        """What `to_json` wrote."""
        return cls(**{**data, "selected": tuple(data["selected"])})


@dataclass(frozen=True, kw_only=True)
class Past:
    """A round that is over: its nonce and whose updates it took."""

    round_number: int
    nonce: str
    accepted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What a device is asked: to train from an adapter, or to judge a new one against it.

    `adapter` and `candidate` are packed states, empty = the plain base. `started_from` names the
    adapter by digest. `margin` (nats) is by how much `candidate` may be worse.
    """

    kind: Kind
    round_number: int
    nonce: str
    base_digest: str
    cluster: str = ""
    started_from: str = ""
    seed: int = 0
    margin: float = 0.0
    adapter: bytes = b""
    candidate: bytes = b""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrival:
    """What the transport brought from a device: sealed bytes, or why there are none."""

    client: str
    data: bytes = b""
    error: str = ""


def select(names: Sequence[str], *, fraction: float, at_least: int, seed: int) -> tuple[str, ...]:
    """A random share of `names`, rounded up and at least so many (or all), in order of name."""
    ordered = sorted(set(names))
    count = min(len(ordered), max(at_least, math.ceil(fraction * len(ordered) - 1e-9)))
    drawn = np.random.default_rng(seed).permutation(len(ordered))[:count]
    return tuple(ordered[i] for i in sorted(drawn))


def seed_of(*parts: object) -> int:
    """A seed of 62 bits from anything that prints; the same parts give the same seed."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 2


def pack_task(task: Task) -> bytes:
    """A task as bytes."""
    header = asdict(task)
    del header["adapter"], header["candidate"]
    text = json.dumps(header | {"adapter_bytes": len(task.adapter)}).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + task.adapter + task.candidate


def unpack_task(data: bytes) -> Task:
    """The task in `data`.

    Raises:
        BadRequest: these bytes are no task of this version.
    """
    try:
        start = len(MAGIC) + 4
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("no task")
        (length,) = struct.unpack("<I", data[len(MAGIC) : start])
        if length > MAX_HEADER_BYTES:
            raise ValueError("header too long")
        header = json.loads(data[start : start + length])
        cut = start + length + int(header.pop("adapter_bytes"))
        task = Task(**header, adapter=data[start + length : cut], candidate=data[cut:])
    except (*UNREADABLE, struct.error) as error:
        raise BadRequest(
            "the server's task is damaged or of another version; update both ends", param="task"
        ) from error
    if task.kind not in ("train", "judge"):
        raise BadRequest(f"the server asks for {task.kind!r}; update this device", param="task")
    return task


def pack_failure(error: FloeError) -> bytes:
    """Why a device sends no update; the cause crosses the wire (bug-log C31)."""
    return FAILED + json.dumps({"kind": error.kind, "message": error.message}).encode()


def failure_in(data: bytes) -> str:
    """The kind of failure in `data`, "" where it is none; its text stays with the device's log."""
    if data[: len(FAILED)] != FAILED:
        return ""
    try:
        kind = str(json.loads(data[len(FAILED) :][:MAX_HEADER_BYTES])["kind"])
    except UNREADABLE:
        return "failed"
    return kind if _WORD.fullmatch(kind) else "failed"  # it is printed
