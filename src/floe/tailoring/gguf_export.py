"""A pruned model as a GGUF file in F32 or F16, in the forms that llama.cpp computes rightly.

Layers all alike keep the architecture; others become `deci`, the one Llama-like architecture with
sizes per layer. What llama.cpp aborts on or gets silently wrong is filled with zeros: a layer 0
without attention gets one zero head, attention without FFN a zero FFN of width 32 (engines.md).

Legend: D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from floe.core import gguf
from floe.core.errors import BadModel, BadPlan
from floe.core.files import sha256_file
from floe.tailoring.gguf_names import GgufNames
from floe.tailoring.tensors import FloatArray, Tensors, in_rows_of
from floe.tailoring.validate import GgufFacts, LayerSizes, validate_gguf

DTYPES = {"F32": gguf.F32, "F16": gguf.F16}
ZERO_FFN = 32
_FILE_TYPE = {"F32": 0, "F16": 1}


@dataclass(frozen=True, kw_only=True)
class GgufExport:
    """What was written; `layers` are the file's sizes, zeros that were filled in included."""

    path: Path
    digest: str
    architecture: str
    layers: tuple[LayerSizes, ...]
    facts: GgufFacts


def export_gguf(
    tensors: Tensors,
    target: Path,
    *,
    metadata_from: Path,
    dtype: str = "F32",
    extra: Mapping[str, str | int | float] | None = None,
) -> GgufExport:
    """Write `tensors` (cut already) with tokenizer and metadata of the original GGUF.

    Matrices are of `dtype`, vectors F32; `extra` is further metadata, such as `general.name`. The
    file is validated before it gets its name.

    Raises:
        BadPlan: the target exists, or another dtype.
        BadModel: the tensors are not those of a model, or not of the original's kind.
    """
    if target.exists():
        raise BadPlan(f"{target} exists; give a new file, or remove it first")
    if dtype not in DTYPES:
        raise BadPlan(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}; quantize afterwards")
    header = gguf.read_header(metadata_from)
    _check_original(header, tensors, metadata_from)
    filled = fill_for_engine(tensors)
    sizes = layer_sizes(filled)
    architecture = _architecture(filled, sizes)
    ready = in_rows_of(filled, architecture)
    metadata = _metadata(
        gguf.raw_values(metadata_from, header), header, architecture, sizes, tensors.head_width
    )
    metadata["general.file_type"] = np.uint32(_FILE_TYPE[dtype])
    metadata |= extra or {}
    raw = {name: _raw(ready, name, dtype) for name in _ordered(ready)}
    raw |= _extra_tensors(header, metadata_from, ready)
    work = target.with_name(f".{target.name}.part")
    try:
        gguf.write(work, metadata, raw)
        facts = validate_gguf(work)
        digest = sha256_file(work)
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    return GgufExport(
        path=target, digest=digest, architecture=architecture, layers=sizes, facts=facts
    )


def fill_for_engine(tensors: Tensors) -> Tensors:
    """The same function in a form that llama.cpp computes rightly."""
    width = tensors.shapes["token_embd.weight"][1]
    added: dict[str, FloatArray] = {}
    for i, size in enumerate(layer_sizes(tensors)):
        prefix, head = f"blk.{i}.", tensors.head_width
        if i == 0 and not size.n_heads:
            for kind in ("attn_q", "attn_k", "attn_v"):
                added[f"{prefix}{kind}.weight"] = np.zeros((head, width), np.float32)
            added[f"{prefix}attn_output.weight"] = np.zeros((width, head), np.float32)
            added[f"{prefix}attn_norm.weight"] = np.ones(width, np.float32)
        if not size.n_ffn:
            for kind in ("ffn_gate", "ffn_up"):
                added[f"{prefix}{kind}.weight"] = np.zeros((ZERO_FFN, width), np.float32)
            added[f"{prefix}ffn_down.weight"] = np.zeros((width, ZERO_FFN), np.float32)
            added[f"{prefix}ffn_norm.weight"] = np.ones(width, np.float32)
    shapes = {**tensors.shapes, **{name: a.shape for name, a in added.items()}}
    return replace(
        tensors, shapes=shapes, load=lambda n: added[n] if n in added else tensors.load(n)
    )


def layer_sizes(tensors: Tensors) -> tuple[LayerSizes, ...]:
    """Heads and channels of each layer, from the tensors' shapes."""

    def rows(layer: int, kind: str) -> int:
        return tensors.shapes.get(f"{GgufNames().make(layer, kind)}.weight", (0,))[0]

    return tuple(
        LayerSizes(
            n_heads=rows(i, "attn_q") // tensors.head_width,
            n_kv_heads=rows(i, "attn_k") // tensors.head_width,
            n_ffn=rows(i, "ffn_gate"),
        )
        for i in range(tensors.n_layers)
    )


def _architecture(tensors: Tensors, sizes: tuple[LayerSizes, ...]) -> str:
    """The original's where it can hold the model: all layers alike, no bias it does not know."""
    odd_bias = tensors.family != "llama" and any(
        name.endswith(("attn_output.bias", "ffn_down.bias")) for name in tensors.shapes
    )
    return "deci" if odd_bias or len(set(sizes)) > 1 else tensors.family


def _check_original(header: gguf.GgufHeader, tensors: Tensors, path: Path) -> None:
    arch = header.metadata.get("general.architecture")
    if arch != tensors.family:
        raise BadModel(
            f"{path} is of architecture {arch!r}, the weights are of {tensors.family!r}; give the "
            "GGUF of the original model"
        )
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or embedding.shape != tensors.shapes["token_embd.weight"]:
        raise BadModel(f"{path} has other embeddings than the weights; give the original's GGUF")


def _metadata(
    values: Mapping[str, gguf.RawValue],
    header: gguf.GgufHeader,
    architecture: str,
    sizes: tuple[LayerSizes, ...],
    head_width: int,
) -> dict[str, Any]:
    old = str(header.metadata["general.architecture"])
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{architecture}{key[len(old) :]}" if key.startswith(f"{old}.") else key
        out[name] = value
    out["general.architecture"] = architecture
    first, own = sizes[0], {}
    for key, name in (
        ("n_heads", "attention.head_count"),
        ("n_kv_heads", "attention.head_count_kv"),
        ("n_ffn", "feed_forward_length"),
    ):
        per_layer = np.asarray([getattr(s, key) for s in sizes], np.int32)
        own[name] = per_layer if architecture == "deci" else np.uint32(getattr(first, key))
    own["block_count"] = np.uint32(len(sizes))
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        own[name] = np.uint32(head_width)
    return out | {f"{architecture}.{name}": value for name, value in own.items()}


def _raw(tensors: Tensors, name: str, dtype: str) -> gguf.RawTensor:
    shape = tuple(tensors.shapes[name])
    kind = dtype if len(shape) > 1 else "F32"
    as_type = np.float16 if kind == "F16" else np.float32

    def load() -> Any:
        array = np.ascontiguousarray(tensors.load(name), as_type)
        if array.shape != shape:
            raise BadModel(f"{name} was loaded as {array.shape}, not {shape}")
        if not np.isfinite(array).all():
            raise BadModel(f"{name} has values that {dtype} cannot hold; nothing was written")
        return array

    return gguf.RawTensor(shape=shape, type=DTYPES[kind], load=load)


def _ordered(tensors: Tensors) -> list[str]:
    """Names outside the layers first, then layer by layer."""

    def key(name: str) -> tuple[int, str]:
        parsed = GgufNames().parse(name.rpartition(".")[0])
        return (parsed[0] if parsed else -1, name)

    return sorted(tensors.shapes, key=key)


def _extra_tensors(
    header: gguf.GgufHeader, path: Path, tensors: Tensors
) -> dict[str, gguf.RawTensor]:
    """Tensors that only a GGUF has, such as rope_freqs, as they are."""
    known = {"token_embd.weight", "output_norm.weight", "output.weight"}

    def loader(info: Any) -> Any:
        return lambda: np.fromfile(path, np.uint8, count=info.n_bytes, offset=info.offset)

    return {
        name: gguf.RawTensor(shape=info.shape, type=info.type, load=loader(info))
        for name, info in header.tensors.items()
        if not name.startswith("blk.") and name not in known and name not in tensors.shapes
    }
