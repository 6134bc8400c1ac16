"""What ggml would abort on or ignore is refused here, before a file reaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floe.core.errors import BadAdapter, BadModel
from floe.core.gguf import GgufHeader, read_header

ARCHITECTURES = ("llama", "qwen2", "qwen3", "deci")
_ADAPTER_SUFFIXES = (".weight.lora_a", ".weight.lora_b")


def checked_model(path: Path) -> GgufHeader:
    """The header of a model file that is safe to hand to llama.cpp.

    Raises:
        BadModel: no such file, not a model, an unknown architecture, or head counts that make
            ggml abort the whole process.
    """
    if not path.is_file():
        raise BadModel(f"no model file at {path}. Fetch one with: floe pull NAME")
    header = read_header(path)
    architecture = header.metadata.get("general.architecture")
    if header.metadata.get("general.type", "model") != "model":
        raise BadModel(f"{path} is a GGUF {header.metadata['general.type']}, not a model")
    if architecture not in ARCHITECTURES:
        raise BadModel(
            f"{path} has architecture {architecture!r}; this version runs "
            f"{', '.join(ARCHITECTURES)}"
        )
    for key in ("block_count", "embedding_length", "attention.head_count"):
        if f"{architecture}.{key}" not in header.metadata:
            raise BadModel(f"{path} lacks the metadata {architecture}.{key}; export it again")
    _check_layers(path, header, str(architecture))
    return header


def _check_layers(path: Path, header: GgufHeader, architecture: str) -> None:
    layers = int(header.metadata[f"{architecture}.block_count"])
    heads = per_layer(header, "attention.head_count", layers)
    kv_heads = per_layer(header, "attention.head_count_kv", layers, default=heads)
    widths = per_layer(header, "feed_forward_length", layers, default=[1] * layers)
    for i, (q, kv, ff) in enumerate(zip(heads, kv_heads, widths, strict=True)):
        if (kv == 0) != (q == 0) or (kv and q % kv):
            raise BadModel(f"{path} layer {i}: {q} query heads do not divide over {kv} kv heads")
        if ff == 0 and q:
            raise BadModel(f"{path} layer {i}: no feed-forward but attention; llama.cpp skips both")
    if heads[0] == 0:
        raise BadModel(f"{path} layer 0 has no attention; keep one zero kv group there")
    if heads[-1] == 0 and widths[-1] == 0:
        raise BadModel(f"{path}: the last layer is empty; drop it instead")


def per_layer(
    header: GgufHeader, key: str, layers: int, *, default: list[int] | None = None
) -> list[int]:
    """A value that GGUF stores once or once per layer, as one per layer.

    Raises:
        BadModel: an array of another length.
    """
    name = f"{header.metadata['general.architecture']}.{key}"
    value: Any = header.metadata.get(name, default)
    if isinstance(value, int):
        return [value] * layers
    values = [int(v) for v in value]
    if len(values) != layers or not values:
        raise BadModel(f"{name} has {len(values)} values for {layers} layers")
    return values


def linear_shapes(header: GgufHeader) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear layer a LoRA may touch, by GGUF module name ("blk.0.attn_q")."""
    return {
        name.removesuffix(".weight"): (info.shape[0], info.shape[1])
        for name, info in header.tensors.items()
        if name.endswith(".weight") and len(info.shape) == 2
    }


def check_adapter(path: Path, *, architecture: str, linears: dict[str, tuple[int, int]]) -> None:
    """Raise BadAdapter unless every tensor of the file fits a module of the model.

    A name without a module, a missing half, another architecture or a wrong shape are refused
    together in one message (bug-log A01, A02).
    """
    if not path.is_file():
        raise BadAdapter(f"no adapter file at {path}; add the adapter again")
    try:
        header = read_header(path)
    except BadModel as error:
        raise BadAdapter(error.message) from error
    found = header.metadata.get("general.architecture")
    if header.metadata.get("general.type") != "adapter":
        raise BadAdapter(f"{path} is not an adapter file: general.type is not 'adapter'")
    if found != architecture:
        raise BadAdapter(f"{path} was made for architecture {found!r}, the model is {architecture}")
    modules = {name.rsplit(".weight.lora_", 1)[0] for name in header.tensors}
    faults = [f for m in sorted(modules) if (f := _module_fault(header, m, linears))]
    if not modules:
        faults = ["it holds no tensors"]
    if faults:
        shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
        raise BadAdapter(f"{path} does not fit the model: {shown}. Nothing was loaded")


def _module_fault(header: GgufHeader, module: str, linears: dict[str, tuple[int, int]]) -> str:
    a, b = (header.tensors.get(module + suffix) for suffix in _ADAPTER_SUFFIXES)
    shape = linears.get(module)
    if shape is None:
        return f"no module {module} in the model (it has e.g. {next(iter(linears), 'none')})"
    if a is None or b is None:
        return f"{module} has only one of lora_a and lora_b"
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return f"{module} has shapes {a.shape} and {b.shape}, not [r, in] and [out, r]"
    if (b.shape[0], a.shape[1]) != shape:
        return f"{module} is {(b.shape[0], a.shape[1])}, the model's is {shape}"
    return ""
