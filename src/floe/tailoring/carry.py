"""Adapters between a model and what was cut from it: rows and columns by the index map.

`carry` takes an adapter of the full model to the pruned one, `restore` one that was trained on the
pruned model to the full one, with zeros where something was removed (bug-log D11). Heads keep
their rows together in both row orders, so the same map serves Hugging Face and GGUF names.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadAdapter
from floe.tailoring.cut import check_cut
from floe.tailoring.gguf_names import KINDS, GgufNames, HfNames
from floe.tailoring.plan import Cut, LayerCut, ModelShape
from floe.tailoring.tensors import layer_takes

FloatArray = NDArray[np.float32]
Pair: TypeAlias = tuple[FloatArray, FloatArray]
"""(A (R, I), B (O, R)): the change of a layer is B A."""
Modules: TypeAlias = Mapping[str, Pair]

HF_NAMES, GGUF_NAMES = HfNames(), GgufNames()
_LINEARS = frozenset(KINDS.values()) - {"attn_norm", "ffn_norm"}


class Names(Protocol):
    """How modules of layers are called; `HF_NAMES` and `GGUF_NAMES`."""

    def parse(self, name: str) -> tuple[int, str] | None:
        """(layer, GGUF's kind), None for a module outside the layers."""

    def make(self, layer: int, kind: str) -> str:
        """The name of a module."""


def carry(modules: Modules, cut: Cut, shape: ModelShape, *, names: Names = HF_NAMES) -> Modules:
    """The adapter for the pruned model; modules of halves that are gone leave with them.

    Modules outside the layers (embeddings, head) stay as they are: the hidden size does.

    Raises:
        BadAdapter: a module that the full model does not have, other shapes than its, or nothing
            of the adapter stays.
        BadPlan: the index map is not of this model.
    """
    check_cut(cut, shape)
    takes = {p.layer: (new, layer_takes(p, cut.head_width)) for new, p in enumerate(cut.layers)}
    carried: dict[str, Pair] = {}
    for name, (a_RI, b_OR) in modules.items():
        parsed = names.parse(name)
        if parsed is None:
            carried[name] = (a_RI, b_OR)
            continue
        layer, kind = parsed
        _check(name, kind, (a_RI, b_OR), _sizes(shape, _whole(shape, layer)), cut, "full")
        new, kinds = takes.get(layer, (0, {}))
        if kind not in kinds:
            continue
        axis, indices = kinds[kind]
        if axis == 0:
            b_OR = np.ascontiguousarray(b_OR[indices])
        else:
            a_RI = np.ascontiguousarray(a_RI[:, indices])
        carried[names.make(new, kind)] = (a_RI, b_OR)
    if not carried:
        raise BadAdapter(
            "nothing of the adapter is left: every module it changes was removed. Train one on "
            "the pruned model"
        )
    return carried


def restore(modules: Modules, cut: Cut, shape: ModelShape, *, names: Names = HF_NAMES) -> Modules:
    """The adapter for the full model: zeros for rows and columns that the pruned one lacks.

    Raises:
        BadAdapter: a module that the pruned model does not have, or other shapes than its.
        BadPlan: the index map is not of this model.
    """
    check_cut(cut, shape)
    restored: dict[str, Pair] = {}
    for name, (a_RI, b_OR) in modules.items():
        parsed = names.parse(name)
        if parsed is None:
            restored[name] = (a_RI, b_OR)
            continue
        new, kind = parsed
        part = cut.layers[new] if new < len(cut.layers) else None
        sizes = _sizes(shape, part)
        _check(name, kind, (a_RI, b_OR), sizes, cut, "pruned")
        assert part is not None  # _check has refused it
        axis, indices = layer_takes(part, cut.head_width)[kind]
        full = _sizes(shape, _whole(shape, part.layer))[kind][axis]
        if axis == 0:
            wide_OR = np.zeros((full, b_OR.shape[1]), b_OR.dtype)
            wide_OR[indices] = b_OR
            b_OR = wide_OR
        else:
            wide_RI = np.zeros((a_RI.shape[0], full), a_RI.dtype)
            wide_RI[:, indices] = a_RI
            a_RI = wide_RI
        restored[names.make(part.layer, kind)] = (a_RI, b_OR)
    return restored


def _whole(shape: ModelShape, layer: int) -> LayerCut | None:
    if layer >= shape.n_layers:
        return None
    heads = shape.n_kv_heads * shape.q_per_kv
    return LayerCut(
        layer=layer, kv_heads=tuple(range(shape.n_kv_heads)), q_heads=tuple(range(heads)),
        ffn=tuple(range(shape.n_ffn)),
    )  # fmt: skip


def _sizes(shape: ModelShape, part: LayerCut | None) -> dict[str, tuple[int, int]]:
    """(O, I) of the linear layers of one layer, by kind; none of a half that is not there."""
    if part is None:
        return {}
    q, kv = len(part.q_heads) * shape.head_width, len(part.kv_heads) * shape.head_width
    width, ffn = shape.width, len(part.ffn)
    sizes: dict[str, tuple[int, int]] = {}
    if q:
        sizes |= {"attn_q": (q, width), "attn_k": (kv, width), "attn_v": (kv, width)}
        sizes["attn_output"] = (width, q)
    if ffn:
        sizes |= {"ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn)}
    return sizes


def _check(
    name: str, kind: str, pair: Pair, sizes: Mapping[str, tuple[int, int]], cut: Cut, which: str
) -> None:
    a_RI, b_OR = pair
    if kind not in _LINEARS:
        raise BadAdapter(f"{name} is no linear layer that can be cut; retrain without it")
    if kind not in sizes:
        raise BadAdapter(f"the {which} model has no {name}")
    if a_RI.ndim != 2 or b_OR.ndim != 2 or a_RI.shape[0] != b_OR.shape[1]:
        raise BadAdapter(f"{name}: A is {a_RI.shape} and B {b_OR.shape}, not (R, I) and (O, R)")
    found = (b_OR.shape[0], a_RI.shape[1])
    if found != sizes[kind]:
        raise BadAdapter(
            f"{name}: changes a layer of {found[0]} x {found[1]} (out x in), the {which} model's "
            f"is {sizes[kind][0]} x {sizes[kind][1]}. Take the index map (floe_cut.json) of the "
            f"model it was trained on; this map is of the base {cut.base_digest[:12]}"
        )
