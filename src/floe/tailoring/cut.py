"""A plan carried out on paper: which KV groups, query heads and FFN channels stay.

Legend: K KV heads, G query heads of a KV head, F FFN channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadPlan
from floe.tailoring.base import LayerImportance
from floe.tailoring.plan import Cut, LayerCut, LayerPlan, ModelShape, Plan
from floe.tailoring.shapes import check_plan


def make_cut(plan: Plan, shape: ModelShape, importances: Sequence[LayerImportance]) -> Cut:
    """The most important groups of each layer, as many as the plan says; ties go to the first.

    Raises:
        BadPlan: the plan does not fit the model, or importances are not of this model.
    """
    check_plan(plan, shape)
    if len(importances) != shape.n_layers:
        raise BadPlan(f"{len(importances)} importances for {shape.n_layers} layers; measure again")
    layers = []
    for i, (part, scores) in enumerate(zip(plan.layers, importances, strict=True)):
        _check_scores(i, scores, shape)
        if not part.dropped:
            layers.append(_layer_cut(i, part, scores, shape))
    return Cut(base_digest=shape.base_digest, layers=tuple(layers), head_width=shape.head_width)


def whole_cut(shape: ModelShape) -> Cut:
    """The cut that keeps everything."""
    whole = tuple(
        LayerCut(
            layer=i, kv_heads=tuple(range(shape.n_kv_heads)),
            q_heads=tuple(range(shape.n_kv_heads * shape.q_per_kv)), ffn=tuple(range(shape.n_ffn)),
        )
        for i in range(shape.n_layers)
    )  # fmt: skip
    return Cut(base_digest=shape.base_digest, layers=whole, head_width=shape.head_width)


def check_cut(cut: Cut, shape: ModelShape) -> None:
    """Refuse an index map that does not fit the model.

    Raises:
        BadPlan: another base, indices out of range, or query heads that do not follow their KV
            heads.
    """
    if cut.base_digest != shape.base_digest or cut.head_width != shape.head_width:
        raise BadPlan(
            f"the index map is for the base {cut.base_digest[:12]}, this is "
            f"{shape.base_digest[:12]}; take the map written beside the pruned model"
        )
    order = [part.layer for part in cut.layers]
    if not order or order != sorted(set(order)) or order[-1] >= shape.n_layers:
        raise BadPlan(f"the index map's layers {order} are not ascending layers of the model")
    for part in cut.layers:
        groups = [q // shape.q_per_kv for q in part.q_heads]
        each = len(part.q_heads) // len(part.kv_heads) if part.kv_heads else 0
        if groups != [kv for kv in part.kv_heads for _ in range(each)]:
            raise BadPlan(
                f"the index map's layer {part.layer}: query heads {list(part.q_heads)} are not "
                f"equally many for each of the KV heads {list(part.kv_heads)}"
            )
        if max(part.kv_heads, default=0) >= shape.n_kv_heads or (
            max(part.ffn, default=0) >= shape.n_ffn
        ):
            raise BadPlan(f"the index map's layer {part.layer} names heads or channels of no model")


def check_built(cut: Cut, plan: Plan) -> None:
    """Refuse a cut that is not what the plan asked for (bug-log D10).

    Raises:
        BadPlan: the first layer that differs, with both sizes.
    """
    asked = [(i, part) for i, part in enumerate(plan.layers) if not part.dropped]
    if [i for i, _ in asked] != [part.layer for part in cut.layers]:
        raise BadPlan("the built model keeps other layers than the plan; build it again")
    for (i, want), got in zip(asked, cut.layers, strict=True):
        heads = want.n_kv_heads * want.q_per_kv if want.n_kv_heads else 0
        asked_sizes = (want.n_kv_heads, heads, want.n_ffn)
        sizes = (len(got.kv_heads), len(got.q_heads), len(got.ffn))
        if sizes != asked_sizes:
            raise BadPlan(
                f"layer {i}: built with (KV heads, query heads, FFN) {sizes}, the plan asks for "
                f"{asked_sizes}; build it again"
            )


def head_rows(heads: Sequence[int], head_width: int) -> NDArray[np.intp]:
    """The rows of these heads in a projection; the same in both rotary orders."""
    starts = np.asarray(heads, np.intp).reshape(-1, 1) * head_width
    return (starts + np.arange(head_width, dtype=np.intp)).reshape(-1)


def _layer_cut(i: int, part: LayerPlan, scores: LayerImportance, shape: ModelShape) -> LayerCut:
    groups = _top(scores.kv_K, part.n_kv_heads)
    heads = [kv * shape.q_per_kv + g for kv in groups for g in _top(scores.q_KG[kv], part.q_per_kv)]
    ffn = _top(scores.ffn_F, part.n_ffn)
    return LayerCut(layer=i, kv_heads=tuple(groups), q_heads=tuple(heads), ffn=tuple(ffn))


def _top(scores: NDArray[np.float64], count: int) -> list[int]:
    order = np.argsort(-scores, kind="stable")[:count]
    return sorted(int(index) for index in order)


def _check_scores(i: int, scores: LayerImportance, shape: ModelShape) -> None:
    wanted: dict[str, tuple[int, ...]] = {
        "kv_K": (shape.n_kv_heads,),
        "q_KG": (shape.n_kv_heads, shape.q_per_kv),
        "ffn_F": (shape.n_ffn,),
    }
    for name, expected in wanted.items():
        array: NDArray[Any] = getattr(scores, name)
        if array.shape != expected:
            raise BadPlan(f"importance of layer {i}: {name} is {array.shape}, not {expected}")
        if not np.isfinite(array).all():
            raise BadPlan(
                f"importance of layer {i}: {name} has values that are no numbers. Calibrate with "
                "other text, or in float32"
            )
