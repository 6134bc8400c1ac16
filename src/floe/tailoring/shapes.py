"""What a model is made of, and which plans can be cut from it.

Shapes come from the configuration and the tensors, never from a library's attributes (bug-log
D02). The hidden size is never cut (D05); heads leave with their KV group (D01).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floe.core.errors import BadModel, BadPlan
from floe.core.gguf import GgufHeader
from floe.tailoring.plan import GROUPS, QUANTS, LayerPlan, ModelShape, Plan
from floe.tailoring.rules import LayerBounds, Rules, layer_bounds

FAMILIES = ("llama", "qwen2")
Shapes = Mapping[str, tuple[int, ...]]

_HF = {
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "embedding": "model.embed_tokens.weight",
    "norm": "model.layers.{}.self_attn.q_norm.weight",
}
_GGUF = {
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "embedding": "token_embd.weight",
    "norm": "blk.{}.attn_q_norm.weight",
}


def shape_of_hf(config: Mapping[str, Any], shapes: Shapes, *, base_digest: str) -> ModelShape:
    """The shape of a Hugging Face model from its config.json and its tensors' shapes.

    Raises:
        BadModel: another family, layers of different width, or configuration and tensors differ.
    """
    family = str(config.get("model_type"))
    heads = int(config.get("num_attention_heads") or 0)
    width = int(config.get("hidden_size") or 0)
    return _shape(
        family, shapes, _HF,
        n_layers=int(config.get("num_hidden_layers") or 0),
        n_heads=heads,
        n_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_width=int(config.get("head_dim") or (width // heads if heads else 0)),
        tied=bool(config.get("tie_word_embeddings", False)), base_digest=base_digest,
    )  # fmt: skip


def shape_of_gguf(header: GgufHeader, *, base_digest: str) -> ModelShape:
    """The shape of a GGUF model from its header.

    Raises:
        BadModel: another architecture, layers of different width, or metadata and tensors differ.
    """
    arch = str(header.metadata.get("general.architecture"))
    shapes = {name: info.shape for name, info in header.tensors.items()}

    def number(key: str, default: int) -> int:
        value = header.metadata.get(f"{arch}.{key}", default)
        if not isinstance(value, int):
            raise BadModel(f"{arch}.{key} differs by layer: cut from the original model instead")
        return value

    heads = number("attention.head_count", 0)
    width = number("embedding_length", 0)
    return _shape(
        arch, shapes, _GGUF,
        n_layers=number("block_count", 0),
        n_heads=heads,
        n_kv_heads=number("attention.head_count_kv", heads),
        head_width=number("attention.key_length", width // heads if heads else 0),
        tied="output.weight" not in shapes, base_digest=base_digest,
    )  # fmt: skip


def whole_plan(shape: ModelShape, *, made_by: str = "") -> Plan:
    """The plan that keeps everything."""
    layer = LayerPlan(n_kv_heads=shape.n_kv_heads, q_per_kv=shape.q_per_kv, n_ffn=shape.n_ffn)
    return Plan(base_digest=shape.base_digest, layers=(layer,) * shape.n_layers, made_by=made_by)


def bounds(shape: ModelShape, rules: Rules) -> tuple[LayerBounds, ...]:
    """What the rules let go of each layer; one record a layer."""
    return tuple(layer_bounds(shape, rules, i) for i in range(shape.n_layers))


def round_plan(
    shape: ModelShape,
    keep_attention: Sequence[float],
    keep_ffn: Sequence[float],
    *,
    rules: Rules,
    importance: str = "taylor",
    made_by: str = "",
) -> Plan:
    """The nearest legal plan to keep ratios (0..1) of each layer's attention and FFN.

    Heads go as whole KV groups first; `real_ratios` says what was really kept (bug-log D01).

    Raises:
        BadPlan: not one ratio a layer.
    """
    if not len(keep_attention) == len(keep_ffn) == shape.n_layers:
        raise BadPlan(f"give one ratio for each of the {shape.n_layers} layers")
    layers = []
    for bound, att, ffn in zip(bounds(shape, rules), keep_attention, keep_ffn, strict=True):
        kv = min(max(round(att * shape.n_kv_heads), bound.min_kv_heads), shape.n_kv_heads)
        channels = round(ffn * shape.n_ffn / rules.ffn_multiple) * rules.ffn_multiple
        if ffn >= 1.0:
            channels = shape.n_ffn
        channels = min(max(channels, bound.min_ffn), shape.n_ffn)
        q_per_kv = shape.q_per_kv if kv else 0
        layers.append(LayerPlan(n_kv_heads=kv, q_per_kv=q_per_kv, n_ffn=channels))
    plan = Plan(
        base_digest=shape.base_digest, layers=tuple(layers), importance=importance, made_by=made_by
    )
    check_plan(plan, shape, rules=rules)
    return plan


def real_ratios(plan: Plan, shape: ModelShape) -> tuple[tuple[float, float], ...]:
    """Kept share of each layer's query heads and FFN channels."""
    n_heads = shape.n_kv_heads * shape.q_per_kv
    return tuple(
        (part.n_kv_heads * part.q_per_kv / n_heads, part.n_ffn / shape.n_ffn)
        for part in plan.layers
    )


def n_parameters(plan: Plan, shape: ModelShape) -> int:
    """Weights of the built model without biases: blocks, norms, embeddings (once if tied)."""
    total = shape.n_vocab * shape.width * (1 if shape.tied_embeddings else 2) + shape.width
    for part in plan.layers:
        if part.n_kv_heads:
            rows = part.n_kv_heads * (2 * part.q_per_kv + 2) * shape.head_width  # q, o, k, v
            total += rows * shape.width + shape.width
        if part.n_ffn:
            total += 3 * part.n_ffn * shape.width + shape.width
    return total


def check_plan(plan: Plan, shape: ModelShape, *, rules: Rules | None = None) -> None:
    """Refuse a plan that no model can be built from, or that breaks `rules`; nothing is built.

    Raises:
        BadPlan: what is wrong, in which layer, and what would be right.
    """
    if plan.base_digest != shape.base_digest:
        raise BadPlan(
            f"the plan was made for the base {plan.base_digest[:12]}, this is "
            f"{shape.base_digest[:12]}. Search again, or give the base it was made for"
        )
    if len(plan.layers) != shape.n_layers:
        raise BadPlan(
            f"the plan has {len(plan.layers)} layers, the model {shape.n_layers}; a layer to drop "
            "stays in the list with all numbers 0"
        )
    for i, part in enumerate(plan.layers):
        _check_layer(i, part, shape)
    if all(part.dropped for part in plan.layers):
        raise BadPlan("the plan drops every layer; keep at least one")
    _check_quants(plan)
    if rules is not None:
        _check_rules(plan, shape, rules)


def _check_layer(i: int, part: LayerPlan, shape: ModelShape) -> None:
    if not 0 <= part.n_kv_heads <= shape.n_kv_heads:
        raise BadPlan(f"layer {i}: n_kv_heads {part.n_kv_heads} is outside 0 to {shape.n_kv_heads}")
    if part.n_kv_heads and not 1 <= part.q_per_kv <= shape.q_per_kv:
        raise BadPlan(
            f"layer {i}: q_per_kv {part.q_per_kv} is outside 1 to {shape.q_per_kv}; every KV head "
            "keeps as many query heads, for no attention set n_kv_heads to 0"
        )
    if not 0 <= part.n_ffn <= shape.n_ffn:
        raise BadPlan(f"layer {i}: n_ffn {part.n_ffn} is outside 0 to {shape.n_ffn}")
    if part.n_ffn % 32 and part.n_ffn != shape.n_ffn:
        raise BadPlan(
            f"layer {i}: n_ffn {part.n_ffn} is no multiple of 32, so its rows cannot be quantized; "
            f"take {part.n_ffn // 32 * 32} or {-(-part.n_ffn // 32) * 32}"
        )


def _check_quants(plan: Plan) -> None:
    for group, quant in plan.quants.items():
        if group not in GROUPS:
            raise BadPlan(f"quants names {group!r}; groups are {', '.join(GROUPS)}")
        if quant not in QUANTS:
            raise BadPlan(f"quants gives {group} the type {quant!r}; types are {', '.join(QUANTS)}")


def _check_rules(plan: Plan, shape: ModelShape, rules: Rules) -> None:
    for i, (part, bound) in enumerate(zip(plan.layers, bounds(shape, rules), strict=True)):
        if part.n_kv_heads < bound.min_kv_heads:
            raise BadPlan(
                f"layer {i}: keeps {part.n_kv_heads} KV heads, its rules ask for "
                f"{bound.min_kv_heads} ({bound.attention_reason}). Keep more, or change the rules"
            )
        if part.n_kv_heads and part.q_per_kv < bound.min_q_per_kv:
            raise BadPlan(
                f"layer {i}: keeps {part.q_per_kv} query heads a KV head, its rules ask for "
                f"{bound.min_q_per_kv} ({bound.attention_reason}). Keep more, or change the rules"
            )
        if part.n_ffn < bound.min_ffn:
            raise BadPlan(
                f"layer {i}: keeps {part.n_ffn} FFN channels, its rules ask for "
                f"{bound.min_ffn} ({bound.ffn_reason}). Keep more, or change the rules"
            )
        if part.n_ffn % rules.ffn_multiple and part.n_ffn != shape.n_ffn:
            raise BadPlan(
                f"layer {i}: n_ffn {part.n_ffn} is no multiple of {rules.ffn_multiple}, "
                "which the rules ask for"
            )


def _shape(
    family: str,
    shapes: Shapes,
    names: Mapping[str, str],
    *,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    head_width: int,
    tied: bool,
    base_digest: str,
) -> ModelShape:
    if family not in FAMILIES:
        raise BadModel(
            f"models of the family {family!r} cannot be cut; {', '.join(FAMILIES)} can, "
            "from the original, not from one that is cut already"
        )
    if min(n_layers, n_heads, n_kv_heads, head_width) < 1 or n_heads % n_kv_heads:
        raise BadModel(
            f"{n_layers} layers, {n_heads} query heads, {n_kv_heads} KV heads of width "
            f"{head_width}: the configuration describes no model"
        )
    if names["norm"].format(0) in shapes:
        raise BadModel("the model normalises queries and keys; such models cannot be cut")
    vocab = _rows(shapes, names["embedding"])
    gate = _rows(shapes, names["gate"].format(0))
    wanted = {
        "q": (n_heads * head_width, vocab[1]),
        "k": (n_kv_heads * head_width, vocab[1]),
        "gate": (gate[0], vocab[1]),
    }
    for i in range(n_layers):
        for part, expected in wanted.items():
            name = names[part].format(i)
            if _rows(shapes, name) != expected:
                raise BadModel(
                    f"{name} is {_rows(shapes, name)}, the configuration says {expected}. "
                    "Cut from the original model, whose layers are all alike"
                )
    return ModelShape(
        base_digest=base_digest, n_layers=n_layers, width=vocab[1], n_kv_heads=n_kv_heads,
        q_per_kv=n_heads // n_kv_heads, head_width=head_width, n_ffn=gate[0], n_vocab=vocab[0],
        tied_embeddings=tied,
    )  # fmt: skip


def _rows(shapes: Shapes, name: str) -> tuple[int, int]:
    shape = shapes.get(name)
    if shape is None or len(shape) != 2:
        raise BadModel(f"the model has no matrix {name}; is its folder complete?")
    return shape[0], shape[1]
