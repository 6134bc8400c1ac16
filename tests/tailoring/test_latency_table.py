"""The latency table against costs that are known, with and without outliers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadPlan
from floe.tailoring.design import design, grid_of, held_out
from floe.tailoring.latency_table import LatencyTable, Row, TableCost, fit_table, steps
from floe.tailoring.leastsq import non_negative, robust_fit
from floe.tailoring.memory import Room, built_layers, memory_of
from floe.tailoring.plan import GROUPS, LayerPlan, ModelShape, Plan

SHAPE = ModelShape(
    base_digest="x", n_layers=12, width=256, n_kv_heads=4, q_per_kv=3, head_width=64, n_ffn=1024,
    n_vocab=5000,
)  # fmt: skip
QUANTS = ("F16", "Q8_0", "Q4_1")
SPEED = {"F16": 1.0, "Q8_0": 0.6, "Q4_1": 0.8}


def true_ms(
    layers: Sequence[LayerPlan], quants: Mapping[str, str], *, n_vocab: int, depth: int
) -> float:
    """An obvious cost: so much for each head, channel, cached token and vocabulary row."""
    total = 0.11 + 2.0 * SPEED[quants["embedding"]] * n_vocab / SHAPE.n_vocab
    for one in layers:
        if one.n_kv_heads:
            heads = one.n_kv_heads * one.q_per_kv
            total += 0.02 + SPEED[quants["attention"]] * (0.01 * one.n_kv_heads + 0.02 * heads)
            total += 1e-5 * depth * heads
        if one.n_ffn:
            total += 0.01 + SPEED[quants["ffn"]] * 3e-4 * one.n_ffn
    return total


def rows_of(noise: Sequence[float] | None = None) -> list[Row]:
    probes = design(SHAPE, grid_of(SHAPE, QUANTS), rows_per_quant=9, deep_tokens=700, seed=7)
    out = []
    for i, probe in enumerate(probes):
        n_vocab = SHAPE.n_vocab if probe.whole_vocab else 258
        depth = probe.depth_tokens or 70
        ms = true_ms(probe.layers, probe.quants, n_vocab=n_vocab, depth=depth)
        prefill = true_ms(probe.layers, probe.quants, n_vocab=n_vocab, depth=0)
        factor = 1.0 if noise is None else noise[i]
        out.append(
            Row(
                layers=probe.layers, quants=probe.quants, n_vocab=n_vocab, depth_tokens=depth,
                decode_ms=ms * factor, prefill_ms=30 * prefill,
            )
        )  # fmt: skip
    return out


def fitted(rows: list[Row]) -> LatencyTable:
    return fit_table(rows, grid=grid_of(SHAPE, QUANTS), shape=SHAPE, prompt_tokens=64)


def errors(table: LatencyTable) -> list[float]:
    out = []
    for plan in held_out(SHAPE, QUANTS, n=20, seed=3):
        layers = built_layers(plan)
        said = table.decode_ms(layers, plan.quants, depth_tokens=400)
        true = true_ms(layers, plan.quants, n_vocab=SHAPE.n_vocab, depth=400)
        out.append(abs(said / true - 1))
    return out


def test_costs_that_are_known_are_found() -> None:
    table = fitted(rows_of())
    assert max(errors(table)) < 1e-6
    assert table.decode_mape < 1e-6 and table.prefill_mape < 1e-6
    plan = next(held_out(SHAPE, QUANTS, n=1, seed=9))
    layers = built_layers(plan)
    wanted = 30 * true_ms(layers, plan.quants, n_vocab=SHAPE.n_vocab, depth=0)
    assert table.prefill_ms(layers, plan.quants) == pytest.approx(wanted, rel=1e-6)


def test_noise_is_averaged_and_said() -> None:
    rng = np.random.default_rng(0)
    table = fitted(rows_of(rng.normal(1.0, 0.03, 1000).tolist()))
    assert float(np.mean(errors(table))) < 0.03
    assert 0.01 < table.decode_mape < 0.06  # the fit error tells of the noise


def test_looks_that_another_process_spoilt_count_little() -> None:
    rng = random.Random(1)
    noise = [3.0 if rng.random() < 0.08 else 1.0 + rng.gauss(0, 0.005) for _ in range(1000)]
    assert float(np.mean(errors(fitted(rows_of(noise))))) < 0.03


def test_wider_never_looks_cheaper() -> None:
    table = fitted(rows_of(np.random.default_rng(2).normal(1.0, 0.2, 1000).tolist()))

    def ms(layer: LayerPlan) -> float:
        return table.decode_ms([layer], dict.fromkeys(GROUPS, "Q8_0"), depth_tokens=9)

    widths = [ms(LayerPlan(n_kv_heads=2, q_per_kv=2, n_ffn=n)) for n in range(32, 1025, 32)]
    heads = [ms(LayerPlan(n_kv_heads=k, q_per_kv=2, n_ffn=64)) for k in range(5)]
    queries = [ms(LayerPlan(n_kv_heads=3, q_per_kv=q, n_ffn=64)) for q in (1, 2, 3)]
    for line in (widths, heads, queries):
        assert all(b >= a - 1e-12 for a, b in pairwise(line))


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.integers(1, 500), min_size=1, max_size=5, unique=True).map(sorted),
    value=st.integers(1, 700),
    values=st.lists(st.floats(0, 10), min_size=5, max_size=5),
)
def test_steps_interpolate(nodes: list[int], value: int, values: list[float]) -> None:
    """Increments weighted by `steps` sum up to linear interpolation (flat before the first)."""
    levels = np.cumsum(values[: len(nodes)])
    found = float(np.dot(steps(value, nodes), values[: len(nodes)]))
    if value <= nodes[-1]:
        assert found == pytest.approx(float(np.interp(value, nodes, levels)), abs=1e-9)
    elif len(nodes) > 1:
        slope = (levels[-1] - levels[-2]) / (nodes[-1] - nodes[-2])
        assert found == pytest.approx(levels[-1] + slope * (value - nodes[-1]), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 12), columns=st.integers(1, 6))
def test_least_squares_stays_above_zero(seed: int, rows: int, columns: int) -> None:
    """Against a slow twin: projected gradient steps until nothing moves."""
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    slow = np.zeros(columns)
    rate = 1 / max(np.linalg.norm(a, 2) ** 2, 1e-9)
    for _ in range(20_000):
        step = np.maximum(slow - rate * (a.T @ (a @ slow - y)), 0)
        if np.abs(step - slow).max() < 1e-12:
            break
        slow = step
    x = non_negative(a, y)
    assert (x >= 0).all()
    assert np.linalg.norm(a @ x - y) <= np.linalg.norm(a @ slow - y) + 1e-6


def test_left_out_errors_are_those_of_a_fit_without_the_row() -> None:
    rng = np.random.default_rng(5)
    a = rng.uniform(0.5, 2.0, (14, 3))
    y = (a @ [1.0, 2.0, 0.5]) * rng.uniform(0.99, 1.01, 14)
    _, found = robust_fit(a, y, scale_N=y)
    for i in range(14):
        keep = np.arange(14) != i
        scaled = a[keep] / y[keep, None]
        x = np.linalg.lstsq(scaled, np.ones(13), rcond=None)[0]
        # outliers are weighted down a little in one and not in the other
        assert found[i] == pytest.approx(float(a[i] @ x - y[i]), abs=2.5e-3 * y[i])


# --- the cost of a plan ---


def test_the_cost_of_a_plan_is_the_sum() -> None:
    table = fitted(rows_of())
    plan = next(held_out(SHAPE, QUANTS, n=1, seed=4))
    room = Room(context_tokens=512, adapters=2)
    costs = TableCost(table=table, room=room, depth_tokens=100, watts=5.0)
    cost = costs.cost(plan)
    layers = built_layers(plan)
    wanted = true_ms(layers, plan.quants, n_vocab=SHAPE.n_vocab, depth=100)
    assert cost.decode_ms == pytest.approx(wanted, rel=1e-6)
    assert cost.memory_bytes == memory_of(SHAPE, plan, room).total_bytes
    assert cost.energy_mj == pytest.approx(5.0 * wanted, rel=1e-6)
    assert (cost.source, costs.energy_label) == ("table", "modelled")
    without = TableCost(table=table, room=room)
    assert without.cost(plan).energy_mj is None and without.energy_label == "unknown"


def test_measured_energy_is_a_table_of_its_own() -> None:
    rows = [replace(r, energy_mj=4.0 * r.decode_ms) for r in rows_of()]
    costs = TableCost(table=fitted(rows), room=Room(), watts=99.0)
    plan = next(held_out(SHAPE, QUANTS, n=1, seed=4))
    cost = costs.cost(plan)
    assert costs.energy_label == "measured"
    assert cost.energy_mj == pytest.approx(4.0 * cost.decode_ms, rel=1e-6)
    partly = [rows[0], *(replace(r, energy_mj=None) for r in rows[1:])]
    assert fitted(partly).energy is None


def test_what_was_not_profiled_is_refused() -> None:
    table = fitted(rows_of())
    plan = Plan(
        base_digest="x",
        layers=(LayerPlan(n_kv_heads=4, q_per_kv=3, n_ffn=1024),) * 2,
        quants=dict.fromkeys(GROUPS, "Q5_0"),
    )
    with pytest.raises(BadPlan, match=r"no costs of head Q5_0: profile with its quantization"):
        TableCost(table=table, room=Room()).cost(plan)
    with pytest.raises(BadPlan, match="names no quantization type for 'embedding'"):
        table.decode_ms(plan.layers, {}, depth_tokens=1)
    with pytest.raises(BadPlan, match="needs measured rows with times above 0"):
        fitted([])
    with pytest.raises(BadPlan, match="needs measured rows with times above 0"):
        fitted([replace(rows_of()[0], decode_ms=0.0)])
