"""A smaller model from a model and an index map, and its slow twin: the full model, masked.

Both compute the same function: the smaller one has the rows and columns that stay, the masked one
zeros in place of the others. With FLAP's compensation, what the removed channels gave on average
is added back as a bias; where the removed half leaves no layer to hold its bias, the half before
it in the residual stream takes it, which is the same sum.

Legend: D width, I inputs of an output projection.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from floe.core.errors import BadModel
from floe.tailoring.cut import head_rows
from floe.tailoring.on_torch.blocks import (
    ATTENTION,
    FFN,
    Model,
    Module,
    Tensor,
    layers_of,
    linear,
    shell,
)  # fmt: skip
from floe.tailoring.on_torch.tailored_modeling import NoAttention, NoFfn
from floe.tailoring.plan import Cut, LayerCut
from floe.tailoring.statistics import Statistics

Half = tuple[int, str]
"""(the original's layer, "attention" or "ffn")."""
Compensation = Mapping[Half, Tensor]
"""A bias (D,) to add to the output of a half that stays."""


def prune_in_memory(model: Model, cut: Cut, *, compensation: Compensation | None = None) -> Model:
    """The smaller model; whatever is not cut shares its memory with `model`, which stays as it is.

    It has no gradients; `copy.deepcopy` it before training or changing it.

    Raises:
        BadModel: attention over a sliding window, which a cut model does not keep.
    """
    bias = compensation or {}
    _check_windows(model)
    layers = layers_of(model)
    n_attention, kept = 0, []
    for part in cut.layers:
        kept.append(_cut_layer(layers[part.layer], part, cut.head_width, n_attention, bias))
        n_attention += bool(part.kv_heads)  # caches are numbered over layers with attention
    small, body = shell(model), shell(model.model)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(kept)
    body.layers = torch.nn.ModuleList(kept)
    body.config = small.config = config
    for layer in kept:
        if isinstance(layer.self_attn, NoAttention):
            continue
        layer.self_attn.config = config
    small.model = body
    return small.eval()


def prune(model: Model, cut: Cut, *, compensation: Compensation | None = None) -> Model:
    """`prune_in_memory` with all memory its own, so that it may be trained."""
    return copy.deepcopy(prune_in_memory(model, cut, compensation=compensation))


def mask_model(model: Model, cut: Cut, *, compensation: Compensation | None = None) -> Model:
    """The full model with zeros where the cut removes something; the smaller one must equal it."""
    bias = compensation or {}
    masked = copy.deepcopy(model).eval().requires_grad_(False)
    by_layer = {part.layer: part for part in cut.layers}
    for i, layer in enumerate(layers_of(masked)):
        part = by_layer.get(i, LayerCut(layer=i, kv_heads=(), q_heads=(), ffn=()))
        heads, ffn = head_rows(part.q_heads, cut.head_width), np.asarray(part.ffn, np.intp)
        _zero_columns(layer.self_attn.o_proj, heads)
        _zero_columns(layer.mlp.down_proj, ffn)
        for out, half, stays in (
            (layer.self_attn.o_proj, "attention", part.kv_heads),
            (layer.mlp.down_proj, "ffn", part.ffn),
        ):
            old = out.bias if stays else None
            out.bias = _bias(old, bias.get((i, half)), out.weight.dtype)
    return masked


def compensation(model: Model, cut: Cut, statistics: Statistics) -> Compensation:
    """FLAP's biases: for each half W[:, removed] times the mean of the removed inputs, plus the
    bias of a half that is removed wholly.

    A half that is removed wholly gives its bias to the half before it that stays; where there is
    none before, it is lost.
    """
    stays = {part.layer: part for part in cut.layers}
    halves: list[tuple[Half, Tensor, bool]] = []
    for i, (layer, seen) in enumerate(zip(layers_of(model), statistics.layers, strict=True)):
        part = stays.get(i, LayerCut(layer=i, kv_heads=(), q_heads=(), ffn=()))
        for half, out, mean, kept in (
            ("attention", layer.self_attn.o_proj, seen.attention.mean,
             head_rows(part.q_heads, cut.head_width)),
            ("ffn", layer.mlp.down_proj, seen.ffn.mean, np.asarray(part.ffn, np.intp)),
        ):  # fmt: skip
            removed = np.ones(len(mean), bool)
            removed[kept] = False
            lost = torch.from_numpy(np.where(removed, mean, 0.0)).to(torch.float32)
            bias = out.weight.detach().float() @ lost
            if not len(kept) and out.bias is not None:
                bias = bias + out.bias.detach().float()
            halves.append(((i, half), bias, bool(len(kept))))
    found: dict[Half, Tensor] = {}
    last: Half | None = None
    for key, bias, is_kept in halves:
        last = key if is_kept else last
        if last is not None and bool(bias.any()):
            found[last] = found[last] + bias if last in found else bias
    return found


def _cut_layer(
    layer: Module, part: LayerCut, head_width: int, cache_index: int, bias: Compensation
) -> Module:
    small = shell(layer)
    if part.kv_heads:
        q, kv = head_rows(part.q_heads, head_width), head_rows(part.kv_heads, head_width)
        attention = shell(layer.self_attn)
        attention.layer_idx = cache_index
        attention.num_key_value_groups = len(part.q_heads) // len(part.kv_heads)
        _cut_linears(attention, ATTENTION, {"q_proj": q, "k_proj": kv, "v_proj": kv}, q)
        _add_bias(attention.o_proj, bias.get((part.layer, "attention")))
        small.self_attn = attention
    else:
        small.self_attn, small.input_layernorm = NoAttention(), torch.nn.Identity()
    if part.ffn:
        ffn, mlp = np.asarray(part.ffn, np.intp), shell(layer.mlp)
        mlp.intermediate_size = len(ffn)
        _cut_linears(mlp, FFN, {"gate_proj": ffn, "up_proj": ffn}, ffn)
        _add_bias(mlp.down_proj, bias.get((part.layer, "ffn")))
        small.mlp = mlp
    else:
        small.mlp, small.post_attention_layernorm = NoFfn(), torch.nn.Identity()
    return small


def _cut_linears(
    parent: Module, names: Sequence[str], rows: Mapping[str, Any], columns: Any
) -> None:
    """Rows of the inner projections, columns of the last of `names`."""
    for name in names:
        old = getattr(parent, name)
        weight = old.weight.detach()
        bias = None if old.bias is None else old.bias.detach()
        if name in rows:
            weight = _take(weight, rows[name], 0)
            bias = None if bias is None else _take(bias, rows[name], 0)
        else:
            weight = _take(weight, columns, 1)
        setattr(parent, name, linear(weight, bias))


def _take(tensor: Tensor, indices: Any, axis: int) -> Tensor:
    if len(indices) == tensor.shape[axis]:
        return tensor
    return tensor.index_select(axis, torch.from_numpy(np.ascontiguousarray(indices)))


def _add_bias(layer: Module, extra: Tensor | None) -> None:
    if extra is not None:
        layer.bias = _bias(layer.bias, extra, layer.weight.dtype)


def _bias(old: Tensor | None, extra: Tensor | None, dtype: Any) -> Any:
    if old is None and extra is None:
        return None
    parts = [p.detach().float() for p in (old, extra) if p is not None]
    return torch.nn.Parameter(sum(parts).to(dtype), requires_grad=False)


def _zero_columns(layer: Module, kept: Any) -> None:
    mask = torch.zeros(layer.weight.shape[1], dtype=torch.bool)
    mask[torch.from_numpy(np.ascontiguousarray(kept))] = True
    layer.weight.data[:, ~mask] = 0.0


def _check_windows(model: Model) -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise BadModel(
            f"layers with {', '.join(sorted(kinds))} cannot be cut; only full attention can"
        )
