"""Hugging Face's and GGUF's names of a model's tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from floe.core.layer_names import GGUF_OF_HF

KINDS = {**GGUF_OF_HF, "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_HF_OF = {gguf: hf for hf, gguf in KINDS.items()}
_HF_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.([a-z_.]+)")
_GGUF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)")


@dataclass(frozen=True, kw_only=True)
class HfNames:
    """Names like "model.layers.3.self_attn.q_proj"."""

    def parse(self, name: str) -> tuple[int, str] | None:
        """(layer, GGUF's kind) of a module's path; None if it is in no layer."""
        found = _HF_LAYER.fullmatch(name)
        return (int(found[1]), KINDS.get(found[2], found[2])) if found else None

    def make(self, layer: int, kind: str) -> str:
        """The path of a module by GGUF's kind."""
        return f"model.layers.{layer}.{_HF_OF.get(kind, kind)}"


@dataclass(frozen=True, kw_only=True)
class GgufNames:
    """Names like "blk.3.attn_q"."""

    def parse(self, name: str) -> tuple[int, str] | None:
        """(layer, kind) of a module's name; None if it is in no layer."""
        found = _GGUF_LAYER.fullmatch(name)
        return (int(found[1]), found[2]) if found else None

    def make(self, layer: int, kind: str) -> str:
        """The name of a module."""
        return f"blk.{layer}.{kind}"


def gguf_tensor_name(name: str) -> str | None:
    """GGUF's name of a Hugging Face tensor, None where it has none."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    module, _, part = name.rpartition(".")
    parsed = HfNames().parse(module)
    if parsed is None or parsed[1] not in _HF_OF or part not in ("weight", "bias"):
        return None
    return f"{GgufNames().make(*parsed)}.{part}"
