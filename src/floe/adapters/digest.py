"""An adapter's identity: what it does to a model, whatever it is called and however it is saved."""

from __future__ import annotations

import hashlib

import numpy as np

from floe.adapters.lora import LoraTensors

_DOMAIN = b"floe adapter 1\n"


def content_digest(lora: LoraTensors) -> str:
    """Hex sha256 over architecture and, by sorted module name, shapes and float32 values.

    The config enters by its effect, the scale in B: name, file order, spelling of alpha and rank,
    drop-out and every other training field do not count (bug-log A05: these are the bytes that
    were loaded).
    """
    digest = hashlib.sha256(_DOMAIN + lora.architecture.encode())
    for name in sorted(lora.pairs):
        pair = lora.pairs[name]
        for array in (pair.a_RI, pair.b_OR):
            digest.update(f"\n{name} {array.shape[0]} {array.shape[1]}\n".encode())
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
    return digest.hexdigest()
