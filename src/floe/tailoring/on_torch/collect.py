"""One pass over calibration text that gathers what all pruning criteria need.

The first tokens go forward and back (for Taylor), the rest only forward. Gradients are taken of
the projections alone, so the embedding and the head cost no backward product of their own.

Legend: B sequences, T tokens, I inputs of a linear layer, O its outputs, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from floe.core.errors import BadRequest
from floe.tailoring.on_torch.blocks import ATTENTION, FFN, Model, Module, Tensor, layers_of
from floe.tailoring.plan import ModelShape
from floe.tailoring.statistics import Array, Groups, Inputs, LayerStatistics, Statistics

TAYLOR_TOKENS = 1024
"""Going back costs twice the way there; LLM-Pruner takes 10 samples of 64 tokens."""


def collect(
    model: Model,
    ids: Sequence[Sequence[int]],
    *,
    shape: ModelShape,
    taylor_tokens: int = TAYLOR_TOKENS,
) -> Statistics:
    """Statistics of `model` over sequences of token ids, each of two tokens or more.

    The model is left as it was: no hook, no gradient, the same training mode.

    Raises:
        BadRequest: no sequence of two tokens.
    """
    texts = [list(sequence) for sequence in ids if len(sequence) > 1]
    if not texts:
        raise BadRequest("calibration needs at least one sequence of two tokens", param="ids")
    layers = layers_of(model)
    gathered = [_Gathered() for _ in layers]
    weights = [(name, p) for layer in layers for name, p in _projections(layer)]
    before = {p: p.requires_grad for p in model.parameters()}
    was_training = model.training
    hooks = [h for layer, g in zip(layers, gathered, strict=True) for h in _watch(layer, g)]
    try:
        model.eval().requires_grad_(False)
        n_taylor, loss = _run(model, texts, [p for _, p in weights], taylor_tokens)
        found = [_statistics(layer, g, shape) for layer, g in zip(layers, gathered, strict=True)]
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)
            parameter.grad = None
        model.train(was_training)
    return Statistics(
        shape=shape, layers=tuple(found), n_tokens=sum(map(len, texts)),
        n_taylor_tokens=n_taylor, loss=loss,
    )  # fmt: skip


class _Gathered:
    """Running sums of one layer, in float64."""

    def __init__(self) -> None:
        self.inputs = {"o_proj": _Moments(), "down_proj": _Moments()}
        self.cosines = {"attention": 0.0, "ffn": 0.0, "block": 0.0}
        self.n_tokens = 0
        self.start: Tensor = None
        self.middle: Tensor = None


class _Moments:
    """Mean and sum of squared deviations per channel, joined batch by batch (Chan)."""

    def __init__(self) -> None:
        self.n = 0
        self.mean: Any = 0.0
        self.deviations: Any = 0.0

    def add(self, x_TI: Tensor) -> None:
        x = x_TI.detach().reshape(-1, x_TI.shape[-1]).to(torch.float32)
        n = x.shape[0]
        mean = x.mean(0)
        deviations = (x - mean).square().sum(0).double()
        mean = mean.double()
        delta, total = mean - self.mean, self.n + n
        self.deviations = self.deviations + deviations + delta.square() * (self.n * n / total)
        self.mean = self.mean + delta * (n / total)
        self.n = total


def _watch(layer: Module, gathered: _Gathered) -> list[Any]:
    def enter(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        gathered.start = (args[0] if args else kwargs["hidden_states"]).detach()

    def middle(_: Any, args: tuple[Any, ...]) -> None:
        gathered.middle = args[0].detach()

    def leave(_: Any, __: Any, output: Any) -> None:
        end = (output[0] if isinstance(output, tuple) else output).detach()
        pairs = {
            "attention": (gathered.start, gathered.middle),
            "ffn": (gathered.middle, end),
            "block": (gathered.start, end),
        }
        for name, (a, b) in pairs.items():
            cosine = torch.nn.functional.cosine_similarity(a.float(), b.float(), dim=-1)
            gathered.cosines[name] += float(cosine.double().sum())
        gathered.n_tokens += end.shape[0] * end.shape[1]
        gathered.start = gathered.middle = None

    def take(name: str) -> Any:
        return lambda _, args: gathered.inputs[name].add(args[0])

    return [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.post_attention_layernorm.register_forward_pre_hook(middle),
        layer.register_forward_hook(leave),
        layer.self_attn.o_proj.register_forward_pre_hook(take("o_proj")),
        layer.mlp.down_proj.register_forward_pre_hook(take("down_proj")),
    ]


def _run(
    model: Model, texts: list[list[int]], weights: list[Tensor], taylor_tokens: int
) -> tuple[int, float]:
    """Forward over all texts, back over the first; tokens gone back over, and the mean loss."""
    n_taylor = 0
    losses, n_targets = 0.0, 0
    for text in texts:
        is_back = n_taylor < taylor_tokens
        for weight in weights:
            weight.requires_grad_(is_back)
        with torch.set_grad_enabled(is_back):
            ids = torch.tensor([text])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            if is_back:
                loss.backward()
                n_taylor += len(text)
        losses, n_targets = losses + float(loss.detach()), n_targets + len(text) - 1
    return n_taylor, losses / n_targets


def _projections(layer: Module) -> list[tuple[str, Tensor]]:
    attention = [(name, getattr(layer.self_attn, name).weight) for name in ATTENTION]
    return attention + [(name, getattr(layer.mlp, name).weight) for name in FFN]


def _statistics(layer: Module, gathered: _Gathered, shape: ModelShape) -> LayerStatistics:
    weights = {name: p.detach().float() for name, p in _projections(layer)}
    magnitude = {name: w.abs() for name, w in weights.items()}
    taylor = {
        name: (w * p.grad.float()).abs() if p.grad is not None else torch.zeros_like(w)
        for (name, p), w in zip(_projections(layer), weights.values(), strict=True)
    }
    n = max(1, gathered.n_tokens)
    change = {name: 1.0 - total / n for name, total in gathered.cosines.items()}
    return LayerStatistics(
        attention=_inputs(gathered.inputs["o_proj"], weights["o_proj"]),
        ffn=_inputs(gathered.inputs["down_proj"], weights["down_proj"]),
        weights=_groups(magnitude, shape),
        taylor=_groups(taylor, shape),
        attention_change=change["attention"],
        ffn_change=change["ffn"],
        block_change=change["block"],
    )


def _inputs(moments: _Moments, weight_OI: Tensor) -> Inputs:
    variance = moments.deviations / moments.n
    square = moments.deviations + moments.n * moments.mean.square()
    return Inputs(
        mean=_numpy(moments.mean),
        variance=_numpy(variance),
        norm=_numpy(square.sqrt()),
        column_abs=_numpy(weight_OI.abs().sum(0)),
        column_square=_numpy(weight_OI.square().sum(0)),
    )


def _groups(parts: dict[str, Tensor], shape: ModelShape) -> Groups:
    """Sums over each group's rows and columns of the seven projections."""
    rows = {name: part.sum(1) for name, part in parts.items()}
    columns = {name: parts[name].sum(0) for name in ("o_proj", "down_proj")}
    kv = (rows["k_proj"] + rows["v_proj"]).reshape(shape.n_kv_heads, -1).sum(1)
    q = (rows["q_proj"] + columns["o_proj"]).reshape(shape.n_kv_heads, shape.q_per_kv, -1).sum(2)
    ffn = rows["gate_proj"] + rows["up_proj"] + columns["down_proj"]
    return Groups(kv_K=_numpy(kv), q_KG=_numpy(q), ffn_F=_numpy(ffn))


def _numpy(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy(), np.float64).copy()
