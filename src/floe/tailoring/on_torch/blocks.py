"""The parts of a Hugging Face model that pruning touches, by their paths, whatever the class."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import torch

from floe.core.errors import BadModel
from floe.tailoring.plan import ModelShape
from floe.tailoring.shapes import shape_of_hf

Model: TypeAlias = Any
Module: TypeAlias = Any
Tensor: TypeAlias = Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN = ("gate_proj", "up_proj", "down_proj")


def layers_of(model: Model) -> list[Module]:
    """The decoder layers.

    Raises:
        BadModel: the model is not built like Llama.
    """
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None:
        raise BadModel(
            f"{type(model).__name__} has no model.layers; only Llama-like models are cut"
        )
    return list(layers)


def shape_of(model: Model, *, base_digest: str) -> ModelShape:
    """The model's shape from its configuration and its tensors (bug-log D02).

    Raises:
        BadModel: another family, or layers that are not alike.
    """
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return shape_of_hf(model.config.to_dict(), shapes, base_digest=base_digest)


def shell(module: Module) -> Module:
    """A copy of a module that shares all parameters and children but can be given others.

    Its tables of children, parameters and hooks are its own.
    """
    twin = copy.copy(module)
    for name, value in module.__dict__.items():
        if isinstance(value, dict):
            twin.__dict__[name] = copy.copy(value)
    return twin


def linear(weight: Tensor, bias: Tensor | None) -> Module:
    """A linear layer around these tensors, without drawing or copying any."""
    layer = torch.nn.Linear(1, 1, bias=False, device="meta")
    layer.out_features, layer.in_features = int(weight.shape[0]), int(weight.shape[1])
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
    return layer
