"""What ggml would abort on or ignore is refused here, before a file reaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from floe.core import gguf
from floe.core.errors import BadAdapter, BadConfig, BadModel
from floe.core.gguf import GgufHeader, read_header
from floe.engine.kv_context import KV_TYPES, KvSettings

ARCHITECTURES = ("llama", "qwen2", "qwen3", "deci")
TOKENIZERS = ("gpt2", "llama")
MAX_LAYERS = 512
MIN_BATCH_TOKENS = 32
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_STRING, _FLOAT32 = 8, 6  # GGUF's value types
_TOKENS = "tokenizer.ggml.tokens"
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_INTEGERS_AND_F64 = range(24, 29)  # ggml's I8 to F64: no arithmetic for weights
_ADAPTER_TYPES = (gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0)
_ADAPTER_SUFFIXES = (".weight.lora_a", ".weight.lora_b")


def checked_model(path: Path) -> GgufHeader:
    """The header of a model file that is safe to hand to llama.cpp.

    Raises:
        BadModel: no such file, not a model, an unknown architecture, or head counts that make
            ggml abort the whole process.
    """
    if not path.is_file():
        raise BadModel(f"no model file at {path}. Fetch one with: floe pull NAME")
    header = read_header(path, arrays=(_TOKENS,))
    architecture = header.metadata.get("general.architecture")
    kind = header.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise BadModel(f"{path} is a GGUF {kind}, not a model")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise BadModel(
            f"{path} has architecture {architecture!r}; this version runs "
            f"{', '.join(ARCHITECTURES)}"
        )
    for key in ("block_count", "embedding_length", "attention.head_count"):
        if f"{architecture}.{key}" not in header.metadata:
            raise BadModel(f"{path} lacks the metadata {architecture}.{key}; export it again")
    for key in ("block_count", "embedding_length"):
        value = header.metadata[f"{architecture}.{key}"]
        if not isinstance(value, int) or value < 1:
            raise BadModel(f"{path} has {architecture}.{key} {value!r}; it must be 1 or more")
    _check_layers(path, header, architecture)
    _check_rest(path, header, architecture)
    return header


def _check_rest(path: Path, header: GgufHeader, architecture: str) -> None:
    """Values outside the layers that llama.cpp asserts instead of refusing."""
    tokenizer = header.metadata.get("tokenizer.ggml.model")
    if not isinstance(tokenizer, str) or tokenizer not in TOKENIZERS:
        raise BadModel(
            f"{path} has the tokenizer {tokenizer!r}; this version reads {', '.join(TOKENIZERS)}"
        )
    scaling = header.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if not isinstance(scaling, str) or scaling not in _ROPE_SCALINGS:
        raise BadModel(
            f"{path} has rope scaling {scaling!r}, not one of {', '.join(_ROPE_SCALINGS)}"
        )
    for key in ("expert_count", "expert_used_count", "expert_group_count", "nextn_predict_layers"):
        count = header.metadata.get(f"{architecture}.{key}", 0)
        if not isinstance(count, int) or count:
            raise BadModel(f"{path} sets {architecture}.{key}; only dense models are run")
    _check_tokens(path, header.metadata.get(_TOKENS), spm=tokenizer == "llama")
    for name, info in header.tensors.items():
        if info.type in _INTEGERS_AND_F64 or (len(info.shape) == 1 and info.type != gguf.F32):
            raise BadModel(f"{path} has {name} in ggml type {info.type}, which cannot be run")


def _check_tokens(path: Path, tokens: object, *, spm: bool) -> None:
    if not isinstance(tokens, list) or not tokens:
        raise BadModel(f"{path} has no tokens; export it again with its tokenizer")
    written = [token for token in tokens if token]  # llama.cpp names empty ones apart
    if len(set(written)) != len(written):
        raise BadModel(f"{path} has a token twice; ids could not be told apart")
    if spm and not _BYTE_TOKENS.issubset(written):
        raise BadModel(f"{path} lacks byte tokens such as <0x0A>; some text would have no ids")


def _check_layers(path: Path, header: GgufHeader, architecture: str) -> None:
    layers = header.metadata[f"{architecture}.block_count"]
    if layers > MAX_LAYERS:
        raise BadModel(f"{path} claims {layers} layers; more than {MAX_LAYERS} cannot be")
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
        BadModel: an array of another length, or no whole numbers.
    """
    name = f"{header.metadata['general.architecture']}.{key}"
    value: Any = header.metadata.get(name, default)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        value = value.tolist()
    if isinstance(value, int):
        value = [value] * layers
    if not isinstance(value, list) or any(v < 0 for v in value):
        raise BadModel(f"{name} must be whole numbers, 0 or more")
    values = value
    if len(values) != layers or not values:
        raise BadModel(f"{name} has {len(values)} values for {layers} layers")
    return values


def head_width(header: GgufHeader) -> int:
    """Values of one head, from the metadata."""
    architecture = header.metadata["general.architecture"]
    layers = int(header.metadata[f"{architecture}.block_count"])
    heads = max(per_layer(header, "attention.head_count", layers))
    width = int(header.metadata[f"{architecture}.embedding_length"])
    return int(header.metadata.get(f"{architecture}.attention.key_length", width // heads))


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
    _check_adapter_metadata(path, header, architecture)
    modules = {name.rsplit(".weight.lora_", 1)[0] for name in header.tensors}
    faults = [f for m in sorted(modules) if (f := _module_fault(header, m, linears))]
    faults += [f"{name} is no part of a LoRA" for name in header.tensors if _is_odd(name)]
    if not modules:
        faults = ["it holds no tensors"]
    if faults:
        shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
        raise BadAdapter(f"{path} does not fit the model: {shown}. Nothing was loaded")


def _check_adapter_metadata(path: Path, header: GgufHeader, architecture: str) -> None:
    """llama.cpp asserts the types of these values, which would end the process."""
    wanted = {"general.type": _STRING, "general.architecture": _STRING, "adapter.type": _STRING}
    wanted["adapter.lora.alpha"] = _FLOAT32
    for key, type_id in wanted.items():
        if key in header.spans and header.spans[key][0] != type_id:
            raise BadAdapter(f"{path} has the metadata {key} in a type of its own; export it again")
    found = header.metadata.get("general.architecture")
    if header.metadata.get("general.type") != "adapter":
        raise BadAdapter(f"{path} is not an adapter file: general.type is not 'adapter'")
    if found != architecture:
        raise BadAdapter(f"{path} was made for architecture {found!r}, the model is {architecture}")
    if header.metadata.get("adapter.type") != "lora":
        raise BadAdapter(f"{path} holds no LoRA: adapter.type is not 'lora'")
    if not np.isfinite(header.metadata.get("adapter.lora.alpha", 0.0)):
        raise BadAdapter(f"{path} has an adapter.lora.alpha that is not a finite number")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise BadAdapter(f"{path} is an activated LoRA, which this version cannot apply")


def _is_odd(name: str) -> bool:
    return ".weight.lora_" in name and not name.endswith(_ADAPTER_SUFFIXES)


def _module_fault(header: GgufHeader, module: str, linears: dict[str, tuple[int, int]]) -> str:
    a, b = (header.tensors.get(module + suffix) for suffix in _ADAPTER_SUFFIXES)
    shape = linears.get(module)
    if shape is None:
        return f"no module {module} in the model (it has e.g. {next(iter(linears), 'none')})"
    if a is None or b is None:
        return f"{module} has only one of lora_a and lora_b"
    if a.type not in _ADAPTER_TYPES or b.type not in _ADAPTER_TYPES:
        return f"{module} is not in F32, F16, BF16 or Q8_0"
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return f"{module} has shapes {a.shape} and {b.shape}, not [r, in] and [out, r]"
    if a.shape[0] == 0:
        return f"{module} has rank 0"
    if (b.shape[0], a.shape[1]) != shape:
        return f"{module} is {(b.shape[0], a.shape[1])}, the model's is {shape}"
    return ""


def check_settings(settings: KvSettings, header: GgufHeader) -> None:
    """Raise BadConfig for what llama.cpp would refuse or abort on."""
    if settings.kv_type not in KV_TYPES:
        raise BadConfig(
            f"model.kv_type {settings.kv_type!r} is not one of {', '.join(KV_TYPES)}",
            param="model.kv_type",
        )
    if settings.batch_tokens < MIN_BATCH_TOKENS:
        raise BadConfig(
            f"model.batch_tokens must be {MIN_BATCH_TOKENS} or more", param="model.batch_tokens"
        )
    if settings.kv_type == "Q8_0":
        if not settings.flash_attention:
            raise BadConfig(
                "model.kv_type Q8_0 needs model.flash_attention; turn it on or take F16",
                param="model.kv_type",
            )
        rows = [i.shape[0] for n, i in header.tensors.items() if n.endswith(".attn_k.weight")]
        if any(n % 32 for n in rows) or head_width(header) % 32:
            raise BadConfig(
                "model.kv_type Q8_0 stores 32 values at a time, which this model's heads do not "
                "fill; take F16",
                param="model.kv_type",
            )
