"""An update as bytes and back, without pickles: a frame with a checksum, a JSON header, floats.

Frame: magic, length of the header, length of the payload, CRC-32 of both, header, payload. The
CRC finds damage; against forgery the sender's seal holds the SHA-256 of the frame. The payload
holds each module's A (R, I) and then B turned (R, O), rows together, so that a server can stack
rows without touching them; 8-bit rows come with one float32 scale each, all scales first.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.packed import PackedState, Places, n_values, places_of, views
from floe.federated.products import difference, state_cut, weighted_sum
from floe.federated.rounds import UNREADABLE
from floe.federated.update import AdapterState, FloatArray, Update

MAX_BYTES = 256 << 20
MAX_HEADER_BYTES = 4 << 20
_MAGIC = b"floe-up1"
_HEAD = struct.Struct("<8sIQI")
_LONGEST_NAME = 300
_LEVELS = 127  # of an 8-bit row, to each side of 0


def encode(update: Update, *, bits: int = 32) -> bytes:
    """The bytes of an update; 8 bits round every row to 255 levels of its largest value.

    Raises:
        ValueError: `bits` is neither 32 nor 8.
    """
    if bits not in (32, 8):
        raise ValueError(f"an update travels with 32 or 8 bits a value, not {bits}")
    modules = update.state.modules
    header = {
        "bits": bits,
        "client": update.client,
        "round_number": update.round_number,
        "n_examples": update.n_examples,
        "cluster": update.cluster,
        "started_from": update.started_from,
        "metrics": dict(update.metrics),
        "base_digest": update.state.base_digest,
        "modules": places_of(update.state),
    }
    rows = [part for f in modules.values() for part in (f.a_RI, f.b_OR.T)]
    payload = b"".join(_plain(rows) if bits == 32 else _rounded(rows))
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + _HEAD.size) % 8)
    head = _HEAD.pack(_MAGIC, len(text), len(payload), _check(text, payload))
    return b"".join([head, text, payload])


def decode(data: bytes | memoryview, *, max_bytes: int = MAX_BYTES) -> Update:
    """The update in these bytes; its arrays look into `data` and are read-only at 32 bits.

    Raises:
        BadUpdate: with `reason` "too_large" (checked before anything is read), "corrupt" (not
            what was sent) or "malformed" (sent so, but no update).
    """
    view = memoryview(data)
    if len(view) > max_bytes:
        raise BadUpdate(
            f"an update of {len(view)} bytes is above the limit of {max_bytes}; train at a lower "
            "rank or raise the limit",
            reason="too_large",
        )
    text, payload = _unframed(view)
    try:
        header = json.loads(text)
        places = tuple((_name(n), int(r), int(o), int(i)) for n, r, o, i in header["modules"])
        flat = _values(places, payload, int(header["bits"]))
        return Update(
            client=_name(header["client"]),
            round_number=int(header["round_number"]),
            state=PackedState(
                base_digest=_name(header["base_digest"]),
                modules=views(flat, places),
                flat=flat,
                places=places,
            ),
            n_examples=int(header["n_examples"]),
            cluster=_name(header["cluster"]),
            started_from=_name(header["started_from"]),
            metrics={_name(k): _number(v) for k, v in header["metrics"].items()},
        )
    except UNREADABLE as error:
        raise BadUpdate(
            f"the update's header does not describe an update ({type(error).__name__}); the "
            "device needs the same version of Floe as the server",
            reason="malformed",
        ) from error


def payload_bytes(places: Places, *, bits: int = 32) -> int:
    """The bytes of a payload for modules (name, rank, outputs, inputs), before any training.

    A frame adds its head and header: some 40 bytes a module.
    """
    if bits == 32:
        return 4 * n_values(places)
    return n_values(places) + 4 * sum(2 * rank for _, rank, _, _ in places)


def quantize(
    update: Update, residual: AdapterState | None = None, *, keep_factors: bool = False
) -> tuple[bytes, AdapterState]:
    """An 8-bit upload, and what rounding lost, to be handed in with the next one.

    Error feedback in product space: the residual is added to the adapter before it is rounded, so
    that what one round loses the next one carries, whatever basis the server answered in. Keep it
    on the device. Not together with clipping for differential privacy: the residual is added after
    the clip. `keep_factors` leaves the residual out of the upload, for the modes in which all
    devices share one A.
    """
    state = update.state
    if residual is not None and not keep_factors:
        state = _with(state, residual)
    data = encode(_replaced(update, state), bits=8)
    sent = decode(data, max_bytes=len(data)).state
    lost = {n: difference(f, sent.modules[n]) for n, f in state.modules.items()}
    small, _ = state_cut(
        AdapterState(base_digest=state.base_digest, modules=lost), max(1, state.rank)
    )
    return data, small


def _with(state: AdapterState, residual: AdapterState) -> AdapterState:
    """The adapter with the residual added, each module at the rank it had."""
    modules = {}
    for name, factors in state.modules.items():
        both = factors
        if name in residual.modules:
            both = weighted_sum([factors, residual.modules[name]], [1.0, 1.0])
        one = AdapterState(base_digest="", modules={name: both})
        modules[name] = state_cut(one, factors.rank)[0].modules[name]
    return AdapterState(base_digest=state.base_digest, modules=modules)


def _replaced(update: Update, state: AdapterState) -> Update:
    return Update(
        client=update.client,
        round_number=update.round_number,
        state=state,
        n_examples=update.n_examples,
        cluster=update.cluster,
        started_from=update.started_from,
        metrics=update.metrics,
    )


def _plain(rows: list[FloatArray]) -> Iterator[bytes]:
    for part in rows:
        yield np.ascontiguousarray(part, dtype="<f4").tobytes()


def _rounded(rows: list[FloatArray]) -> Iterator[bytes]:
    scales = [np.abs(part).max(axis=1, initial=0.0) / np.float32(_LEVELS) for part in rows]
    for scale_R in scales:
        yield scale_R.astype("<f4").tobytes()
    for part, scale_R in zip(rows, scales, strict=True):
        steps = part / np.where(scale_R > 0.0, scale_R, np.float32(1.0))[:, None]
        yield np.rint(steps).clip(-_LEVELS, _LEVELS).astype(np.int8).tobytes()


def _unframed(view: memoryview) -> tuple[bytes, memoryview]:
    """Header and payload of a frame whose lengths and checksum hold."""
    if len(view) < _HEAD.size:
        raise _corrupt(f"{len(view)} bytes are less than a frame's head")
    magic, n_header, n_payload, check = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise _corrupt("it does not begin as an update")
    if n_header > MAX_HEADER_BYTES:
        raise BadUpdate(
            f"a header of {n_header} bytes is above the limit of {MAX_HEADER_BYTES}",
            reason="too_large",
        )
    if _HEAD.size + n_header + n_payload != len(view):
        raise _corrupt(
            f"it should be {_HEAD.size + n_header + n_payload} bytes long and is {len(view)}"
        )
    text, payload = view[_HEAD.size : _HEAD.size + n_header], view[_HEAD.size + n_header :]
    if _check(text, payload) != check:
        raise _corrupt("its checksum is another")
    return bytes(text), payload


def _values(places: Places, payload: memoryview, bits: int) -> FloatArray:
    """The block of floats in a payload that is as long as the modules say."""
    for _, rank, n_outputs, n_inputs in places:
        if min(rank, n_outputs, n_inputs) < 1 or rank > n_outputs + n_inputs:
            raise ValueError("a rank or a side of a layer is out of range")
    if bits not in (32, 8) or payload_bytes(places, bits=bits) != len(payload):
        raise ValueError("the payload is not as long as the modules say")
    if len({name for name, *_ in places}) != len(places):
        raise ValueError("a module is named twice")
    return np.frombuffer(payload, "<f4") if bits == 32 else _unrounded(places, payload)


def _unrounded(places: Places, payload: memoryview) -> FloatArray:
    """The 8-bit rows as floats in one block."""
    n_scales = sum(2 * rank for _, rank, _, _ in places)
    scales = np.frombuffer(payload, "<f4", count=n_scales)
    values = np.frombuffer(payload, np.int8, offset=4 * n_scales).astype(np.float32)
    lengths = [side for _, rank, o, i in places for side in [i] * rank + [o] * rank]
    values *= np.repeat(scales, lengths)
    return values


def _check(text: bytes | memoryview, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(text))


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise ValueError("a name is no text, or too long")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a metric is no finite number")
    return float(value)


def _corrupt(what: str) -> BadUpdate:
    return BadUpdate(f"the update was damaged on its way: {what}; send it again", reason="corrupt")
