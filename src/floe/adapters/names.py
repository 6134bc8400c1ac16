"""Hugging Face module paths to GGUF module names, and the row order that llama.cpp expects."""

from __future__ import annotations

import re

from floe.core.layer_names import GGUF_OF_HF, INTERLEAVED
from floe.core.model import ModelInfo

_HF_OF = {gguf: hf for hf, gguf in GGUF_OF_HF.items()}
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.([a-z_.]+)")
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)")

KNOWN = INTERLEAVED | {"qwen2", "qwen3"}


def gguf_name(path: str) -> str | None:
    """ "model.layers.3.self_attn.q_proj" -> "blk.3.attn_q"; None for any other path."""
    match = _LAYER.fullmatch(path)
    if match is None or match[2] not in GGUF_OF_HF:
        return None
    return f"blk.{match[1]}.{GGUF_OF_HF[match[2]]}"


def hf_path(name: str) -> str:
    """The inverse of `gguf_name`, for messages; the name itself where there is none."""
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _HF_OF:
        return name
    return f"model.layers.{match[1]}.{_HF_OF[match[2]]}"


def is_permuted(name: str, architecture: str) -> bool:
    """Whether the base converter reorders the output rows of this module."""
    return architecture in INTERLEAVED and name.endswith((".attn_q", ".attn_k"))


def head_width(model: ModelInfo) -> int:
    """Rows of one attention head; the same in all layers, also where they differ in heads."""
    rows = model.linears.get("blk.0.attn_q", (model.width, 0))[0]  # n_heads is layer 0's
    return rows // max(1, model.n_heads)
