"""A whole model in F32, with or without an adapter merged into its weights.

The one door to the `gguf` package (extra `convert`), which knows how to dequantize every type.
O = outputs of a linear layer, I = its inputs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from floe.adapters.lora import FloatArray, LoraTensors
from floe.core import gguf
from floe.core.errors import BadAdapter, BadModel, FloeError, Missing


def write_f32(model: Path, target: Path, *, merged: LoraTensors | None = None) -> None:
    """Write `model` with every tensor in F32, and W + B A where `merged` has a pair.

    One tensor is in memory at a time; the tokenizer is copied byte by byte.

    Raises:
        Missing: the `gguf` package is not installed.
        BadModel: the model cannot be read or dequantized.
        BadAdapter: a pair of `merged` has no weight in the model.
    """
    dequantize = _dequantizer()
    header = gguf.read_header(model)
    metadata: dict[str, Any] = dict(gguf.raw_values(model, header))
    if "general.file_type" in metadata:
        metadata["general.file_type"] = 0  # all F32
    pairs = {f"{name}.weight": pair for name, pair in (merged.pairs if merged else {}).items()}
    if unknown := sorted(pairs.keys() - header.tensors.keys()):
        raise BadAdapter(f"{model} has no tensor {unknown[0]}: the adapter is for another model")
    _check_room(target, header)

    def load(name: str) -> FloatArray:
        info = header.tensors[name]
        raw = np.fromfile(model, np.uint8, count=info.n_bytes, offset=info.offset)
        try:
            weight = np.asarray(dequantize(raw, info.type), np.float32).reshape(info.shape)
        except (NotImplementedError, ValueError) as error:
            raise BadModel(
                f"{model}: tensor {name!r} of ggml type {info.type} cannot be dequantized here. "
                "Verify against an F16, Q8_0 or Q4 file of the model"
            ) from error
        if name in pairs:
            weight = weight + pairs[name].b_OR @ pairs[name].a_RI
        return weight

    tensors = {
        name: gguf.RawTensor(shape=info.shape, type=gguf.F32, load=_bound(load, name))
        for name, info in header.tensors.items()
    }
    gguf.write(target, metadata, tensors)


def _bound(load: Any, name: str) -> Any:
    return lambda: load(name)


def _dequantizer() -> Any:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise Missing(
            "the gguf package is not installed. Install it with: pip install 'floe[convert]'"
        ) from error
    return lambda raw, type_id: dequantize(raw, GGMLQuantizationType(type_id))


def _check_room(target: Path, header: gguf.GgufHeader) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    need = sum(gguf.n_bytes_of(info.shape, gguf.F32) for info in header.tensors.values())
    free = shutil.disk_usage(target.parent).free
    if free < need + (64 << 20):
        raise FloeError(f"{target.parent} has {free} bytes free; {need} are needed. Make room")
