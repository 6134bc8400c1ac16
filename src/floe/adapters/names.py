"""Hugging Face module paths to GGUF module names, and the row order that llama.cpp expects."""

from __future__ import annotations

import re

from floe.adapters.lora import FloatArray
from floe.core.model import ModelInfo

_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HF_OF = {gguf: hf for hf, gguf in _MODULES.items()}
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.([a-z_.]+)")
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)")

PERMUTED = frozenset({"llama", "deci"})
KNOWN = PERMUTED | {"qwen2", "qwen3"}


def gguf_name(path: str) -> str | None:
    """ "model.layers.3.self_attn.q_proj" -> "blk.3.attn_q"; None for any other path."""
    match = _LAYER.fullmatch(path)
    if match is None or match[2] not in _MODULES:
        return None
    return f"blk.{match[1]}.{_MODULES[match[2]]}"


def hf_path(name: str) -> str:
    """The inverse of `gguf_name`, for messages; the name itself where there is none."""
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _HF_OF:
        return name
    return f"model.layers.{match[1]}.{_HF_OF[match[2]]}"


def is_permuted(name: str, architecture: str) -> bool:
    """Whether the base converter reorders the output rows of this module."""
    return architecture in PERMUTED and name.endswith((".attn_q", ".attn_k"))


def head_width(model: ModelInfo) -> int:
    """Rows of one attention head; the same in all layers, also where they differ in heads."""
    rows = model.linears.get("blk.0.attn_q", (model.width, 0))[0]  # n_heads is layer 0's
    return rows // max(1, model.n_heads)


def permute_rows(b_OR: FloatArray, head_rows: int) -> FloatArray:
    """Rows of each head from half-split rotary order (HF) to interleaved order (GGUF)."""
    n_heads = b_OR.shape[0] // head_rows
    halves = b_OR.reshape(n_heads, 2, head_rows // 2, b_OR.shape[1])
    return halves.swapaxes(1, 2).reshape(b_OR.shape)
