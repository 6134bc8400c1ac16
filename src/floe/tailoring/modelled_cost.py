"""What a plan costs by its bytes: a stand-in where no device was profiled.

A decoded token reads every weight once, so its time is bytes over bandwidth plus a constant for
each layer and for the token. Measured tables (`latency_table.py`) replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

from floe.tailoring.base import Cost
from floe.tailoring.plan import GROUPS, LayerPlan, ModelShape, Plan

BITS = {
    "F32": 32.0, "F16": 16.0, "Q8_0": 8.5, "Q5_1": 6.0, "Q5_0": 5.5, "Q4_1": 5.0, "Q4_0": 4.5,
}  # fmt: skip
"""Bits for a weight, with the scales of its block."""


def parameters_by_group(shape: ModelShape, plan: Plan) -> dict[str, int]:
    """Weights of the matrices of each tensor group; norms, a few thousand, are left out.

    A tied embedding counts once, as "embedding".
    """
    table = shape.n_vocab * shape.width
    return {
        "embedding": table,
        "attention": sum(attention_parameters(shape, layer) for layer in plan.layers),
        "ffn": sum(3 * layer.n_ffn * shape.width for layer in plan.layers),
        "output": 0 if shape.tied_embeddings else table,
    }


def attention_parameters(shape: ModelShape, layer: LayerPlan) -> int:
    """Weights of query, key, value and output of a layer."""
    heads = 2 * layer.n_kv_heads * layer.q_per_kv + 2 * layer.n_kv_heads
    return heads * shape.head_width * shape.width


def kv_bytes(shape: ModelShape, plan: Plan, *, context_tokens: int, value_bytes: float) -> int:
    """The KV cache of a full context, each layer with its own KV heads (bug-log D17)."""
    heads = sum(layer.n_kv_heads for layer in plan.layers)
    return round(2 * heads * shape.head_width * context_tokens * value_bytes)


@dataclass(frozen=True, kw_only=True)
class ModelledCost:
    """A `CostModel` without a device. The defaults are of one core of a desktop CPU."""

    shape: ModelShape
    context_tokens: int = 2048
    kv_value_bytes: float = 2.0
    adapter_bytes: int = 0
    bytes_per_ms: float = 10e6
    layer_ms: float = 0.02
    token_ms: float = 0.1
    prefill_tokens: int = 128
    prefill_speedup: float = 6.0
    mj_per_ms: float | None = None

    def cost(self, plan: Plan) -> Cost:
        """Modelled milliseconds and millijoules for a token, bytes in all."""
        weights = self.parameters(plan)
        n_bytes = {g: n * BITS[plan.quants.get(g, "F16")] / 8 for g, n in weights.items()}
        read = sum(n_bytes.values())
        layers = sum(1 for layer in plan.layers if not layer.dropped)
        decode_ms = read / self.bytes_per_ms + layers * self.layer_ms + self.token_ms
        cache = kv_bytes(
            self.shape, plan, context_tokens=self.context_tokens, value_bytes=self.kv_value_bytes
        )
        return Cost(
            prefill_ms=decode_ms * self.prefill_tokens / self.prefill_speedup,
            decode_ms=decode_ms,
            memory_bytes=round(read) + cache + self.adapter_bytes,
            energy_mj=None if self.mj_per_ms is None else decode_ms * self.mj_per_ms,
            source="table",
        )

    def parameters(self, plan: Plan) -> dict[str, int]:
        """Weights by tensor group."""
        found = parameters_by_group(self.shape, plan)
        assert set(found) == set(GROUPS)
        return found
