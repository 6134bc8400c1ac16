"""Tensors as ggml lays them out: type ids, sizes, and the simple types as numpy arrays."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32, F16, Q8_0, BF16 = 0, 1, 8, 30

# ggml type id -> (values in a block, bytes of a block)
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies: numpy shape, ggml type id, absolute offset and size in bytes."""

    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int


def n_bytes_of(shape: Sequence[int], type_id: int) -> int:
    """Bytes of a tensor; ValueError if the type is unknown or its blocks do not fill the rows."""
    if type_id not in _BLOCKS:
        raise ValueError(f"unknown ggml type id {type_id}")
    values, size = _BLOCKS[type_id]
    if shape and shape[-1] % values:
        raise ValueError(f"rows of {shape[-1]} values do not divide into blocks of {values}")
    count = 1
    for n in shape:
        count *= n
    return count // values * size


def tensor_array(data: Buffer, info: TensorInfo) -> NDArray[np.float32]:
    """A tensor of type F32, F16, BF16 or Q8_0 as float32 (a copy).

    Raises:
        ValueError: for another type.
    """
    raw = np.frombuffer(data, np.uint8, count=info.n_bytes, offset=info.offset)
    if info.type == F32:
        flat = raw.view("<f4").astype(np.float32)
    elif info.type == F16:
        flat = raw.view("<f2").astype(np.float32)
    elif info.type == BF16:
        flat = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif info.type == Q8_0:
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        flat = (scale * blocks[:, 2:].copy().view(np.int8).astype(np.float32)).reshape(-1)
    else:
        raise ValueError(f"ggml type id {info.type} cannot be read here; use F32, F16, BF16, Q8_0")
    return flat.reshape(info.shape)
