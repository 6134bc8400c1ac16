"""Memory to the byte: against real files and a real cache. Budgets hold all together."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailoring_cuts import cut_of

from floe.core import gguf
from floe.core.errors import BadPlan
from floe.engine.llamacpp import LlamaCppEngine
from floe.tailoring.base import Budgets, Cost
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.gguf_quant import quantize_gguf
from floe.tailoring.gguf_quant import weights_bytes as file_weights_bytes
from floe.tailoring.memory import (
    Room,
    broken_budgets,
    built_layers,
    kv_token_bytes,
    memory_of,
    parameters,
    weights_bytes,
)
from floe.tailoring.plan import GROUPS, QUANTS, LayerPlan, ModelShape, Plan
from floe.tailoring.probes import write_probe
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tensors import cut_tensors, from_gguf
from floe.testing.tiny_layers import TinyLayers

SHAPE = ModelShape(
    base_digest="tiny", n_layers=3, width=64, n_kv_heads=4, q_per_kv=2, head_width=16, n_ffn=160,
    n_vocab=258,
)  # fmt: skip
LAYERS = st.builds(
    LayerPlan,
    n_kv_heads=st.integers(0, 4),
    q_per_kv=st.integers(1, 2),
    n_ffn=st.integers(0, 5).map(lambda n: 32 * n),
)


def plan_of(*layers: LayerPlan, quants: dict[str, str] | None = None) -> Plan:
    return Plan(base_digest="tiny", layers=layers, quants=quants or {})


def layer(kv: int, q: int, ffn: int) -> LayerPlan:
    return LayerPlan(n_kv_heads=kv, q_per_kv=q, n_ffn=ffn)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    layers=st.lists(LAYERS, min_size=1, max_size=3).filter(lambda x: not all(i.dropped for i in x)),
    quants=st.fixed_dictionaries({group: st.sampled_from(QUANTS) for group in GROUPS}),
    tied=st.booleans(),
)
def test_weights_are_those_of_the_file(
    tmp_path: Path, layers: list[LayerPlan], quants: dict[str, str], tied: bool
) -> None:
    shape = ModelShape(**{**SHAPE.__dict__, "tied_embeddings": tied})
    plan = plan_of(*layers, quants=quants)
    path = tmp_path / "probe.gguf"
    write_probe(path, shape, built_layers(plan), quants, context_tokens=64)
    header = gguf.read_header(path)
    assert weights_bytes(shape, plan) == file_weights_bytes(header)
    last = max(header.tensors.values(), key=lambda i: i.offset)
    first = min(i.offset for i in header.tensors.values())
    assert path.stat().st_size - first == weights_bytes(shape, plan)
    assert last.offset + last.n_bytes <= path.stat().st_size
    counts = [int(n) for n in (_size(i.shape) for i in header.tensors.values())]
    assert parameters(shape, plan) == sum(counts)


def _size(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


@pytest.mark.parametrize("kv_type", ["F16", "F32"])
def test_d17_cache_is_that_of_each_layer(tmp_path: Path, kv_type: str) -> None:
    """Layers with different KV heads: llama.cpp saves as many bytes a token as we count."""
    plan = plan_of(layer(4, 2, 32), layer(1, 1, 64), layer(0, 0, 96), layer(2, 2, 32))
    shape = ModelShape(**{**SHAPE.__dict__, "n_layers": 4})
    path = tmp_path / "probe.gguf"
    write_probe(path, shape, built_layers(plan), {}, context_tokens=128)
    engine = LlamaCppEngine(path, threads=1, context_tokens=128, kv_type=kv_type)
    try:
        session: Any = engine.session().result()
        session.feed(list(range(2, 12)))
        few = _saved_bytes(session)
        session.feed(list(range(2, 92)))
        many = _saved_bytes(session)
    finally:
        engine.close()
    # A cell is saved with its position and sequences, a few bytes; more means another shape.
    counted = 90 * kv_token_bytes(shape, plan, kv_type=kv_type)
    assert counted == 90 * (4 + 1 + 2) * 2 * 16 * (2 if kv_type == "F16" else 4)
    assert 0 <= many - few - counted <= 90 * 24


def _saved_bytes(session: Any) -> int:
    context = session._seat.context
    size = context._c.llama_state_seq_get_size
    size.restype, size.argtypes = ctypes.c_size_t, (ctypes.c_void_p, ctypes.c_int32)
    found: int = session._scheduler.call(lambda: size(context._ctx, session._seat.row.id)).result()
    return found


def test_room_adds_up() -> None:
    plan = plan_of(layer(4, 2, 160), layer(2, 1, 32))
    alone = memory_of(SHAPE, plan, Room(context_tokens=1, contexts=1))
    room = Room(context_tokens=300, contexts=2, kv_type="F32", adapters=3, adapter_rank=8)
    more = memory_of(SHAPE, plan, room)
    token = kv_token_bytes(SHAPE, plan, kv_type="F32")
    assert alone.kv_bytes == 256 * kv_token_bytes(SHAPE, plan)  # contexts are rounded up to 256
    assert more.kv_bytes == 2 * 512 * token
    linears = [(128, 64), (64, 64), (64, 64), (64, 128), (160, 64), (160, 64), (64, 160)]
    linears += [(32, 64), (32, 64), (32, 64), (64, 32), (32, 64), (32, 64), (64, 32)]
    assert more.adapters_bytes == 3 * sum(2 * 8 * (a + b) for a, b in linears)
    assert more.total_bytes == more.weights_bytes + more.kv_bytes + more.adapters_bytes
    assert more.weights_bytes == alone.weights_bytes


def test_layers_as_llama_can_hold_them() -> None:
    plan = plan_of(layer(0, 0, 0), layer(0, 0, 64), layer(2, 2, 0), layer(1, 1, 32))
    assert built_layers(plan) == (layer(1, 1, 64), layer(2, 2, 32), layer(1, 1, 32))
    with pytest.raises(BadPlan, match="drops every layer"):
        built_layers(plan_of(layer(0, 0, 0)))


def test_unknown_types_are_refused() -> None:
    with pytest.raises(BadPlan, match="kv type 'Q4_0' is not one of F16, F32, Q8_0"):
        kv_token_bytes(SHAPE, plan_of(layer(1, 1, 32)), kv_type="Q4_0")
    with pytest.raises(BadPlan, match="no tensor group 'all'"):
        weights_bytes(SHAPE, plan_of(layer(1, 1, 32), quants={"all": "F16"}))


# --- bug-log D16 ---

COST = Cost(prefill_ms=100.0, decode_ms=10.0, memory_bytes=1000, energy_mj=5.0)


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        (Budgets(), ()),
        (Budgets(memory_bytes=1000, decode_ms=10.0, prefill_ms=100.0, energy_mj=5.0), ()),
        (Budgets(memory_bytes=999), ("memory_bytes 1000 is above 999",)),
        (Budgets(decode_ms=9.5, prefill_ms=100.0), ("decode_ms 10 is above 9.5",)),
        (Budgets(prefill_ms=50.0), ("prefill_ms 100 is above 50",)),
        (Budgets(energy_mj=1.0), ("energy_mj 5 is above 1",)),
        (Budgets(parameters=10, kv_bytes=10), ("parameters 20 is above 10", "kv_bytes 30 is")),
    ],
)
def test_d16_budgets_hold_together(budgets: Budgets, words: tuple[str, ...]) -> None:
    found = broken_budgets(budgets, COST, n_parameters=20, kv_bytes=30)
    assert len(found) == len(words)
    assert all(wanted in said for wanted, said in zip(words, found, strict=True))


def test_d16_a_limit_on_the_unknown_is_broken() -> None:
    cost = Cost(prefill_ms=1.0, decode_ms=float("nan"), memory_bytes=1)
    found = broken_budgets(Budgets(energy_mj=3.0, parameters=5, decode_ms=5.0), cost)
    assert found == (
        "decode_ms nan is above 5",
        "energy_mj is not known, the limit is 3",
        "parameters is not known, the limit is 5",
    )


def test_d16_memory_at_a_sequence_length() -> None:
    plan = plan_of(layer(4, 2, 160), layer(4, 2, 160))
    short, long = (memory_of(SHAPE, plan, Room(context_tokens=n)).total_bytes for n in (256, 2048))
    limit = Budgets(memory_bytes=(short + long) // 2)
    held = [
        not broken_budgets(limit, Cost(prefill_ms=1, decode_ms=1, memory_bytes=n))
        for n in (short, long)
    ]
    assert held == [True, False]


@pytest.mark.parametrize("quant", ["Q8_0", "Q5_1", "Q4_0"])
def test_a_pruned_and_quantized_model_takes_what_was_counted(
    layered: TinyLayers, tmp_path: Path, quant: str
) -> None:
    """The whole way: cut, export, quantize; the file's tensors are as large as the plan said."""
    shape = shape_of_gguf(gguf.read_header(layered.gguf), base_digest="x")
    sizes = ((0, 0, 32), (2, 1, 0), (0, 0, 0), (1, 2, 64))
    quants = {"embedding": "Q8_0", "attention": "F16", "ffn": quant, "output": "Q8_0"}
    plan = Plan(base_digest="x", layers=tuple(layer(*one) for one in sizes), quants=quants)
    tensors = cut_tensors(from_gguf(layered.gguf), cut_of(shape, *sizes))
    export_gguf(tensors, tmp_path / "cut.gguf", metadata_from=layered.gguf)
    found = quantize_gguf(tmp_path / "cut.gguf", tmp_path / "q.gguf", quants)
    assert found.weights_bytes == weights_bytes(shape, plan)
    LlamaCppEngine(tmp_path / "q.gguf", threads=1, context_tokens=64).close()
