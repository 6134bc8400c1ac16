"""LoRA files read with numpy alone, for the reference engine: checks, and GGUF to matrices.

Legend: R rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from floe.core.errors import BadAdapter, BadModel
from floe.core.ggml import tensor_array
from floe.core.gguf import read_header
from floe.core.layer_names import GGUF_OF_HF
from floe.core.model import ModelInfo
from floe.engine.base import FloatArray

Shapes = Mapping[str, tuple[int, int]]

_A, _B = ".lora_A.weight", ".lora_B.weight"


class Matrices(NamedTuple):
    """One layer's part of an adapter: A (R, I), B (O, R) and the factor of their product."""

    a: FloatArray
    b: FloatArray
    scale: float


def gguf_name(name: str) -> str | None:
    """GGUF's name of a block's linear layer, None for anything else.

    "model.layers.3.self_attn.q_proj" becomes "blk.3.attn_q".
    """
    parts = name.split(".")
    if len(parts) != 5 or parts[:2] != ["model", "layers"]:
        return None
    kind = GGUF_OF_HF.get(".".join(parts[3:]))
    return kind and f"blk.{parts[2]}.{kind}"


def check_config(folder: Path, config: Mapping[str, Any], info: ModelInfo) -> None:
    """Refuse what is more than a sum of two matrices, and adapters of another base.

    Raises:
        BadAdapter: not LoRA, DoRA, modules_to_save, or another base model.
    """
    if config.get("peft_type") != "LORA":
        raise BadAdapter(f"{folder} is no LoRA; only LoRA adapters can be loaded")
    if config.get("use_dora"):
        raise BadAdapter(f"{folder} is a DoRA, which is no sum; train it without DoRA")
    if config.get("modules_to_save"):
        raise BadAdapter(f"{folder} replaces whole modules; train it without modules_to_save")
    base = str(config.get("base_model_name_or_path") or "").lower()
    if info.names and base and base not in info.names:
        raise BadAdapter(f"{folder} was trained for another base model than {info.name}")


def check_tensors(path: Path, shapes: Shapes) -> set[str]:
    """The layers that the file has matrices for; each must be in `shapes` (out, in) and fit it.

    Raises:
        BadAdapter: one does not; nothing of a file is ever ignored (bug-log A01, A37).
    """
    with safe_open(str(path), framework="np") as file:
        found = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    if not found:
        raise BadAdapter(f"{path} is empty")
    layers = set()
    for key, shape in found.items():
        stem = key.removeprefix("base_model.model.")
        suffix = next((s for s in (_A, _B) if stem.endswith(s)), "")
        name = stem.removesuffix(suffix)
        if not suffix or name not in shapes:
            raise BadAdapter(f"{path} holds {key}, which is no LoRA matrix of this model")
        n_out, n_in = shapes[name]
        if (shape[1] != n_in) if suffix == _A else (shape[0] != n_out):
            raise BadAdapter(f"{path}: {key} has shape {shape}; the layer is ({n_out}, {n_in})")
        layers.add(name)
    return layers


def read_gguf(path: Path, shapes: Shapes, info: ModelInfo) -> dict[str, Matrices]:
    """An adapter in GGUF form by torch module name; rows of q and k put back in torch's order.

    Raises:
        BadAdapter: unreadable, another architecture, wrong shapes, or a tensor without a layer.
    """
    try:
        header = read_header(path)
    except BadModel as error:
        raise BadAdapter(error.message) from error
    if header.metadata.get("general.architecture") != info.architecture:
        raise BadAdapter(f"{path} is for another architecture than {info.architecture}")
    alpha = float(header.metadata.get("adapter.lora.alpha", 0.0))
    data = path.read_bytes()
    out = {}
    for name, shape in shapes.items():
        stem = gguf_name(name) or ""
        pair = [header.tensors.get(f"{stem}.weight.lora_{x}") for x in "ab"]
        if pair[0] is None or pair[1] is None:
            continue
        a, b = tensor_array(data, pair[0]), tensor_array(data, pair[1])
        if (b.shape[0], a.shape[1]) != shape or a.shape[0] != b.shape[1]:
            raise BadAdapter(f"{path}: {stem} does not have the shape of the model's layer")
        b = _torch_rows(b, stem, info)
        out[name] = Matrices(a, b, alpha / b.shape[1] if alpha else 1.0)
    if not out or 2 * len(out) != len(header.tensors):
        raise BadAdapter(f"{path} holds matrices that match no layer of the model")
    return out


def _torch_rows(b: FloatArray, stem: str, info: ModelInfo) -> FloatArray:
    """llama.cpp interleaves the two halves of each head's rows of q and k; undo it."""
    heads = {"attn_q": info.n_heads, "attn_k": info.n_kv_heads}.get(stem.split(".")[-1])
    if info.architecture != "llama" or heads is None:
        return b
    return b.reshape(heads, -1, 2, b.shape[1]).swapaxes(1, 2).reshape(b.shape)
