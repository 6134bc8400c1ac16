"""Masks of a secure sum: whole numbers that only who holds the seed can tell from noise.

Flower's own generator folds a seed of 256 bits into 32 and feeds a Mersenne Twister: whoever tries
all seeds takes the masks off. SHAKE-256 keeps all 256 bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from floe.federated.shields.secagg import Whole

_LABEL = b"floe secure sum 1\n"


def masks(seed: bytes, modulus: int, shapes: Sequence[tuple[int, ...]]) -> list[Whole]:
    """Uniform numbers from 0 below `modulus` (a power of two up to 2**32), an array a shape.

    Raises:
        ValueError: another modulus.
    """
    if not 2 <= modulus <= 1 << 32 or modulus & (modulus - 1):
        raise ValueError(f"{modulus} is no power of two between 2 and 2**32")
    sizes = [math.prod(shape) for shape in shapes]
    stream = hashlib.shake_256(_LABEL + seed).digest(4 * sum(sizes))
    drawn = np.frombuffer(stream, "<u4").astype(np.int64) & (modulus - 1)
    ends = np.cumsum(sizes)[:-1]
    pieces = np.split(drawn, ends)
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
