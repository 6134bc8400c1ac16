"""safetensors bytes to float32 arrays, bounds-checked; BF16 included, which numpy cannot name."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from floe.adapters.lora import FloatArray
from floe.core.errors import BadAdapter

_MAX_HEADER_BYTES = 16 << 20
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def parse_safetensors(data: bytes, *, source: str) -> dict[str, FloatArray]:
    """Tensors by name as float32.

    Raises:
        BadAdapter: truncated, malformed, or a type other than F64, F32, F16, BF16.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise BadAdapter(f"{source} is truncated or not a safetensors file. Copy it again")
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError as error:
        raise BadAdapter(f"{source} has a header that is not JSON. Copy it again") from error
    if not isinstance(header, dict):
        raise BadAdapter(f"{source} has a header that is not an object. Copy it again")
    body = memoryview(data)[8 + size :]
    return {
        name: _tensor(body, name, entry, source)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _tensor(body: memoryview, name: str, entry: Any, source: str) -> FloatArray:
    try:
        kind, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        start, stop = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise BadAdapter(f"{source} describes tensor {name!r} wrongly. Copy it again") from error
    if kind not in _ITEM_BYTES:
        kinds = ", ".join(_ITEM_BYTES)
        raise BadAdapter(f"{source} holds tensor {name!r} as {kind}; save it as one of {kinds}")
    fits = min(shape, default=0) >= 0 and 0 <= start <= stop <= len(body)
    if not fits or stop - start != math.prod(shape) * _ITEM_BYTES[kind]:
        raise BadAdapter(f"{source} is truncated: tensor {name!r} is not whole. Copy it again")
    raw = body[start:stop]
    if kind == "BF16":
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(raw, f"<f{_ITEM_BYTES[kind]}").astype(np.float32)
    return values.reshape(shape)
