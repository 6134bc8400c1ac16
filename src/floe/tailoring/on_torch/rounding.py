"""What GGUF's types do to weights: rounded in float32, so that a plan's bits show in its quality.

The formulas are those of llama.cpp's reference quantizer, blocks of 32 along the inputs; a test
holds them against the `gguf` package. Norms and biases stay as they are.

Legend: O outputs of a linear layer, I its inputs, N blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from floe.tailoring.on_torch.blocks import ATTENTION, FFN, Model, layers_of, linear, shell

Tensor: TypeAlias = Any
BLOCK = 32


def rounded(model: Model, quants: Mapping[str, str]) -> Model:
    """The model with each group's weights as its type keeps them; `model` is left as it is."""
    if not any(t not in ("F32", "F16") for t in quants.values()):
        return model
    small, body = shell(model), shell(model.model)
    body.layers = torch.nn.ModuleList([_layer(layer, quants) for layer in layers_of(model)])
    embedding = quants.get("embedding", "F32")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    table = round_weight(model.model.embed_tokens.weight.detach(), embedding)
    body.embed_tokens = torch.nn.Embedding.from_pretrained(table)
    head = table if tied else round_weight(model.lm_head.weight.detach(), quants.get("output", ""))
    small.lm_head = linear(head, model.lm_head.bias)
    small.model = body
    return small.eval()


def _layer(layer: Any, quants: Mapping[str, str]) -> Any:
    out = shell(layer)
    for half, names, group in (("self_attn", ATTENTION, "attention"), ("mlp", FFN, "ffn")):
        module = getattr(layer, half)
        if not hasattr(module, names[0]):
            continue
        own = shell(module)
        for name in names:
            old = getattr(module, name)
            weight = round_weight(old.weight.detach(), quants.get(group, ""))
            setattr(own, name, linear(weight, None if old.bias is None else old.bias.detach()))
        setattr(out, half, own)
    return out


def round_weight(weight_OI: Tensor, quant: str) -> Tensor:
    """The weight after quantizing and dequantizing; rows that blocks do not fill become F16."""
    if quant in ("", "F32"):
        return weight_OI
    if quant == "F16" or weight_OI.shape[1] % BLOCK:
        return weight_OI.half().float()
    x_NB = weight_OI.float().reshape(-1, BLOCK)
    bits = int(quant[1])
    if bits == 8:
        scale_N = x_NB.abs().amax(1, keepdim=True) / 127
        return _applied(x_NB, scale_N, None, -127, 127, weight_OI)
    top = 2**bits - 1
    if quant.endswith("_1"):
        least_N = x_NB.amin(1, keepdim=True)
        scale_N = (x_NB.amax(1, keepdim=True) - least_N) / top
        return _applied(x_NB, scale_N, least_N, 0, top, weight_OI)
    at_N = x_NB.abs().argmax(1, keepdim=True)
    half = 2 ** (bits - 1)
    return _applied(x_NB, x_NB.gather(1, at_N) / -half, None, -half, half - 1, weight_OI)


def _applied(
    x_NB: Tensor, scale_N: Tensor, least_N: Tensor | None, low: int, high: int, like: Tensor
) -> Tensor:
    """Levels by the exact scale, values by the scale as stored, in half precision."""
    inverse_N = torch.where(scale_N != 0, 1.0 / scale_N, torch.zeros_like(scale_N))
    if least_N is None and low != -127:
        levels = (x_NB * inverse_N - low + 0.5).floor_().clamp_(0, high - low).add_(low)
    elif least_N is None:
        levels = (x_NB * inverse_N).round_().clamp_(low, high)
    else:
        levels = ((x_NB - least_N) * inverse_N + 0.5).floor_().clamp_(low, high)
    out = levels.mul_(scale_N.half().float())
    if least_N is not None:
        out = out.add_(least_N.half().float())
    return out.reshape(like.shape)
