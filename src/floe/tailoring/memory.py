"""What a plan needs in memory, to the byte: weights as the GGUF holds them, KV cache, adapters.

Also what must hold of it: budgets, all together (bug-log D16).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floe.core import gguf
from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets, Cost
from floe.tailoring.gguf_quant import TYPE_IDS, check_quants, group_of, stored_as
from floe.tailoring.plan import COMPENSATED, LayerPlan, ModelShape, Plan

KV_TYPES = ("F16", "F32", "Q8_0")
ALIGNMENT = 32
MIN_FFN = 32
_CELLS = 256  # llama.cpp rounds a context up to this many cells


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a model at work. `total_bytes` is what a budget is held against.

    Compute buffers (some 10 to 100 MB, touched as needed) are the engine's and not counted.
    """

    weights_bytes: int
    kv_bytes: int
    adapters_bytes: int

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weights_bytes + self.kv_bytes + self.adapters_bytes


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is to fit beside the weights: a context per `contexts`, adapters of one rank in F16."""

    context_tokens: int = 2048
    contexts: int = 1
    kv_type: str = "F16"
    adapters: int = 0
    adapter_rank: int = 16


def built_layers(plan: Plan) -> tuple[LayerPlan, ...]:
    """The layers as a `deci` file can hold them, dropped ones left out.

    The first layer always keeps one KV group, and a layer with attention an FFN of 32; both are
    zeros where the plan has none, since llama.cpp would refuse or skip the layer otherwise.

    Raises:
        BadPlan: every layer is dropped.
    """
    kept = [layer for layer in plan.layers if not layer.dropped]
    if not kept:
        raise BadPlan("the plan drops every layer; keep one or more", param="layers")
    if kept[0].n_kv_heads == 0:
        kept[0] = LayerPlan(n_kv_heads=1, q_per_kv=1, n_ffn=kept[0].n_ffn)
    return tuple(
        LayerPlan(n_kv_heads=one.n_kv_heads, q_per_kv=one.q_per_kv, n_ffn=one.n_ffn or MIN_FFN)
        for one in kept
    )


def tensor_shapes(shape: ModelShape, layers: Sequence[LayerPlan]) -> dict[str, tuple[int, ...]]:
    """Every tensor of the file by GGUF name, numpy's order of dimensions; `layers` as built."""
    width, head = shape.width, shape.head_width
    out: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.n_vocab, width)}
    for i, layer in enumerate(layers):
        block = f"blk.{i}."
        if layer.n_kv_heads:
            kv = layer.n_kv_heads * head
            q = kv * layer.q_per_kv
            out |= {
                f"{block}attn_norm.weight": (width,),
                f"{block}attn_q.weight": (q, width),
                f"{block}attn_k.weight": (kv, width),
                f"{block}attn_v.weight": (kv, width),
                f"{block}attn_output.weight": (width, q),
            }
        if layer.n_ffn:
            out |= {
                f"{block}ffn_norm.weight": (width,),
                f"{block}ffn_gate.weight": (layer.n_ffn, width),
                f"{block}ffn_up.weight": (layer.n_ffn, width),
                f"{block}ffn_down.weight": (width, layer.n_ffn),
            }
    out["output_norm.weight"] = (width,)
    if not shape.tied_embeddings:
        out["output.weight"] = (shape.n_vocab, width)
    return out


def tensor_type(
    name: str, dims: tuple[int, ...], quants: Mapping[str, str], *, base_quant: str = "F16"
) -> str:
    """The type a tensor is stored in; `base_quant` where the plan says nothing of its group.

    Norms are F32. Rows that blocks of 32 do not fill are F16.
    """
    group = group_of(name) if len(dims) > 1 else None
    return "F32" if group is None else stored_as(quants.get(group, base_quant), dims[-1])


def weights_bytes(
    shape: ModelShape, plan: Plan, *, base_quant: str = "F16", alignment: int = ALIGNMENT
) -> int:
    """Bytes of all tensors in the file, each filled up to the alignment.

    Raises:
        BadPlan: an unknown group or type, or nothing left.
    """
    check_quants(plan.quants)
    total = 0
    for name, dims in tensor_shapes(shape, built_layers(plan)).items():
        quant = tensor_type(name, dims, plan.quants, base_quant=base_quant)
        size = gguf.n_bytes_of(dims, TYPE_IDS[quant])
        total += -(-size // alignment) * alignment
    bias = gguf.n_bytes_of((shape.width,), TYPE_IDS["F32"])
    return total + n_biases(shape, plan) * (-(-bias // alignment) * alignment)


def n_biases(shape: ModelShape, plan: Plan) -> int:
    """Halves whose output gets a bias for what was removed; one that is gone gives it to the half
    before it that stays.
    """
    if plan.importance not in COMPENSATED:
        return 0
    holders: set[tuple[int, str]] = set()
    last: tuple[int, str] | None = None
    heads = shape.n_kv_heads * shape.q_per_kv
    for i, layer in enumerate(plan.layers):
        kept = layer.n_kv_heads * layer.q_per_kv
        for half, n, whole in (("attention", kept, heads), ("ffn", layer.n_ffn, shape.n_ffn)):
            last = (i, half) if n else last
            if n < whole and last is not None:
                holders.add(last)
    return len(holders)


def kv_token_bytes(shape: ModelShape, plan: Plan, *, kv_type: str = "F16") -> int:
    """KV cache per token over all layers, each with its own number of KV heads (bug-log D17).

    Raises:
        BadPlan: a type the cache cannot have.
    """
    if kv_type not in KV_TYPES:
        raise BadPlan(f"kv type {kv_type!r} is not one of {', '.join(KV_TYPES)}", param="kv_type")
    return sum(
        2 * gguf.n_bytes_of((layer.n_kv_heads * shape.head_width,), TYPE_IDS[kv_type])
        for layer in built_layers(plan)
        if layer.n_kv_heads
    )


def parameters(shape: ModelShape, plan: Plan) -> int:
    """Weights of the model as built, norms and embeddings among them."""
    total = 0
    for dims in tensor_shapes(shape, built_layers(plan)).values():
        count = 1
        for n in dims:
            count *= n
        total += count
    return total


def memory_of(
    shape: ModelShape, plan: Plan, room: Room | None = None, *, base_quant: str = "F16"
) -> Memory:
    """What the plan's model needs with that room beside it.

    Raises:
        BadPlan: the plan cannot be built.
    """
    room = room or Room()
    cells = -(-room.context_tokens // _CELLS) * _CELLS
    return Memory(
        weights_bytes=weights_bytes(shape, plan, base_quant=base_quant),
        kv_bytes=room.contexts * cells * kv_token_bytes(shape, plan, kv_type=room.kv_type),
        adapters_bytes=room.adapters * _adapter_bytes(shape, plan, room.adapter_rank),
    )


def _adapter_bytes(shape: ModelShape, plan: Plan, rank: int) -> int:
    """A LoRA of that rank on every linear layer, in F16."""
    return sum(
        2 * rank * (dims[0] + dims[1])
        for name, dims in tensor_shapes(shape, built_layers(plan)).items()
        if len(dims) == 2 and name.startswith("blk.")
    )


def broken_budgets(
    budgets: Budgets, cost: Cost, *, n_parameters: int | None = None, kv_bytes: int | None = None
) -> tuple[str, ...]:
    """What does not hold, in words with both figures; empty when all limits hold (bug-log D16).

    A limit on something that is not known (energy without a meter or model) is broken.
    """
    checks: tuple[tuple[str, float | None, float | None], ...] = (
        ("memory_bytes", budgets.memory_bytes, cost.memory_bytes),
        ("decode_ms", budgets.decode_ms, cost.decode_ms),
        ("prefill_ms", budgets.prefill_ms, cost.prefill_ms),
        ("energy_mj", budgets.energy_mj, cost.energy_mj),
        ("parameters", budgets.parameters, n_parameters),
        ("kv_bytes", budgets.kv_bytes, kv_bytes),
    )
    out = []
    for name, limit, found in checks:
        if limit is not None and found is None:
            out.append(f"{name} is not known, the limit is {limit:g}")
        elif limit is not None and found is not None and not found <= limit:
            out.append(f"{name} {found:g} is above {limit:g}")
    return tuple(out)
