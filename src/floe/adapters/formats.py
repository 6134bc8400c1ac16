"""LoRA adapters as GGUF files: written for the engine, read from users and from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.adapters.lora import (
    FloatArray,
    LoraPair,
    LoraTensors,
    base_fault,
    effect_faults,
    pair_faults,
    read_whole,
    refuse,
    sample,
)
from floe.core import gguf
from floe.core.errors import BadAdapter, BadModel
from floe.core.model import ModelInfo

_A, _B = ".weight.lora_a", ".weight.lora_b"
_F16_MAX = float(np.finfo(np.float16).max)


def write_lora_gguf(
    path: Path, lora: LoraTensors, architecture: str, *, dtype: type = np.float16
) -> None:
    """Write `lora` so that llama.cpp applies it as it is (alpha 0 = scale used as given).

    A pair that float16 cannot hold is written as float32.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for name, pair in lora.pairs.items():
        a_RI, b_OR = balanced(pair)
        largest = max(float(np.abs(a_RI).max()), float(np.abs(b_OR).max()))
        fitting = np.float32 if largest > _F16_MAX else dtype
        tensors[name + _A] = a_RI.astype(fitting)
        tensors[name + _B] = b_OR.astype(fitting)
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 0.0,
    }
    if lora.base:
        metadata["general.base_model.count"] = 1
        metadata["general.base_model.0.name"] = lora.base
    gguf.write(path, metadata, tensors)


def balanced(pair: LoraPair) -> tuple[FloatArray, FloatArray]:
    """A times and B by the same power of two, so that neither sinks below float16's range.

    Exact: the product does not change. A freshly trained B is often near 1e-5.
    """
    largest_a, largest_b = float(np.abs(pair.a_RI).max()), float(np.abs(pair.b_OR).max())
    if largest_a == 0.0 or largest_b == 0.0:
        return pair.a_RI, pair.b_OR
    shift = round((np.log2(largest_b) - np.log2(largest_a)) / 2)
    return np.ldexp(pair.a_RI, shift), np.ldexp(pair.b_OR, -shift)


def read_lora_gguf(path: Path, model: ModelInfo, *, any_base: bool = False) -> LoraTensors:
    """The adapter in a GGUF file, with its scale folded into B.

    A declared base is checked unless `any_base`; a GGUF need not declare one.

    Raises:
        BadAdapter: with every fault found, each saying what to do.
    """
    return parse_lora_gguf(read_whole(path), str(path), model, any_base=any_base)


def parse_lora_gguf(
    data: bytes, source: str, model: ModelInfo, *, any_base: bool = False
) -> LoraTensors:
    """`read_lora_gguf` of bytes in memory."""
    try:
        header = gguf.parse_header(data, source=source)
    except BadModel as error:
        raise BadAdapter(error.message) from error
    meta = header.metadata
    faults = _metadata_faults(meta, model)
    base = meta.get("general.base_model.0.name")
    if base and not any_base:
        fault = base_fault(str(base), model)
        faults += [fault] if fault else []
    arrays: dict[str, FloatArray] = {}
    for name, info in header.tensors.items():
        try:
            arrays[name] = gguf.tensor_array(data, info)
        except ValueError as error:
            faults.append(f"tensor {name!r}: {error}")
    pairs = {}
    for module in sorted({name.removesuffix(_A).removesuffix(_B) for name in arrays}):
        a_RI, b_OR = arrays.pop(module + _A, None), arrays.pop(module + _B, None)
        if a_RI is None or b_OR is None or a_RI.ndim != 2:
            faults.append(f"{module}: is not a pair of matrices {_A[1:]} and {_B[1:]}")
            continue
        with np.errstate(all="ignore"):  # what is not finite is refused by its value
            scale = np.float32(np.float64(_alpha(meta)) / a_RI.shape[0] if _alpha(meta) else 1.0)
            pairs[module] = LoraPair(a_RI=a_RI, b_OR=b_OR * scale)
    if not pairs:
        faults.append(f"holds no LoRA pair. The model's modules: {sample(model.linears)}")
    faults += pair_faults(pairs, model)
    refuse(source, faults or effect_faults(pairs))
    return LoraTensors(
        architecture=model.architecture, pairs=pairs, base=str(base) if base else None
    )


def _alpha(meta: dict[str, Any]) -> float:
    value = meta.get("adapter.lora.alpha", 0.0)
    return float(value) if isinstance(value, int | float) else float("nan")


def _metadata_faults(meta: dict[str, Any], model: ModelInfo) -> list[str]:
    faults = []
    kind, form = meta.get("general.type"), meta.get("adapter.type")
    if kind != "adapter":
        faults.append(f"general.type is {kind!r}, not 'adapter': this is a model or another file")
    if form != "lora":
        faults.append(f"adapter.type is {form!r}: only 'lora' is supported")
    architecture = meta.get("general.architecture")
    if architecture != model.architecture:
        faults.append(
            f"is for architecture {architecture!r}, the model's is {model.architecture!r}. "
            "Serve the model it was made for"
        )
    if not np.isfinite(_alpha(meta)):
        faults.append("adapter.lora.alpha must be a finite number")
    if "adapter.alora.invocation_tokens" in meta:
        faults.append("is active only after certain tokens (aLoRA), which is not supported")
    return faults
