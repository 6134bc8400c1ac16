"""Layers of different width in the Llama family; needs transformers alone.

This file travels with a model whose layers differ, for transformers has one width for all layers:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

`config.layer_sizes[i]` says of layer i how many query heads, KV heads and FFN channels it has (0:
none of that half) and whether its output projections have a bias. The attention layers are
numbered for the cache by themselves, so that its first layer always has keys.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)


class NoAttention(torch.nn.Module):  # type: ignore[misc]
    """Attention of a layer that has none: adds nothing to the residual stream."""

    def forward(self, hidden_states: Any, **_: Any) -> tuple[Any, None]:
        """Zeros."""
        return torch.zeros_like(hidden_states), None


class NoFfn(torch.nn.Module):  # type: ignore[misc]
    """FFN of a layer that has none."""

    def forward(self, hidden_states: Any) -> Any:
        """Zeros."""
        return torch.zeros_like(hidden_states)


class TailoredLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """Llama's configuration and `layer_sizes`."""

    model_type = "tailored_llama"


class TailoredQwen2Config(Qwen2Config):  # type: ignore[misc]
    """Qwen2's configuration and `layer_sizes`."""

    model_type = "tailored_qwen2"


class TailoredLlamaForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama whose layers have the sizes of `config.layer_sizes`."""

    config_class = TailoredLlamaConfig

    def __init__(self, config: TailoredLlamaConfig) -> None:
        super().__init__(config)
        tailor_layers(self, config.layer_sizes)


class TailoredQwen2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """A Qwen2 whose layers have the sizes of `config.layer_sizes`."""

    config_class = TailoredQwen2Config

    def __init__(self, config: TailoredQwen2Config) -> None:
        super().__init__(config)
        tailor_layers(self, config.layer_sizes)


def tailor_layers(model: Any, sizes: list[dict[str, Any]]) -> None:
    """Give each layer projections of its own sizes, without weights in them yet."""
    cache_index = 0
    for layer, size in zip(model.model.layers, sizes, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        if size["n_kv_heads"]:
            width = attention.head_dim
            q, kv = size["n_heads"] * width, size["n_kv_heads"] * width
            attention.q_proj = _linear(attention.q_proj, n_out=q)
            attention.k_proj = _linear(attention.k_proj, n_out=kv)
            attention.v_proj = _linear(attention.v_proj, n_out=kv)
            attention.o_proj = _linear(attention.o_proj, n_in=q, bias=size["attention_out_bias"])
            attention.num_key_value_groups = size["n_heads"] // size["n_kv_heads"]
            attention.layer_idx = cache_index
            cache_index += 1
        else:
            layer.self_attn, layer.input_layernorm = NoAttention(), torch.nn.Identity()
        if size["n_ffn"]:
            mlp.intermediate_size = size["n_ffn"]
            mlp.gate_proj = _linear(mlp.gate_proj, n_out=size["n_ffn"])
            mlp.up_proj = _linear(mlp.up_proj, n_out=size["n_ffn"])
            mlp.down_proj = _linear(mlp.down_proj, n_in=size["n_ffn"], bias=size["ffn_out_bias"])
        else:
            layer.mlp, layer.post_attention_layernorm = NoFfn(), torch.nn.Identity()


def _linear(
    old: Any, *, n_out: int | None = None, n_in: int | None = None, bias: bool | None = None
) -> Any:
    weight = old.weight
    return torch.nn.Linear(
        n_in or weight.shape[1],
        n_out or weight.shape[0],
        bias=old.bias is not None if bias is None else bias,
        device=weight.device,
        dtype=weight.dtype,
    )
