"""FLAP's biases are counted where they are written; a carried adapter that is wrong shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailoring_cuts import cuts, plan_of_cut

from floe.core.errors import BadAdapter
from floe.tailoring.carry import carry
from floe.tailoring.memory import memory_of, n_biases
from floe.tailoring.on_torch.carried import carry_error, merged
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.prune import compensation
from floe.tailoring.plan import ModelShape

FIXED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def statistics(model: Any, shape: ModelShape) -> Any:
    rng = np.random.default_rng(0)
    return collect(model, [rng.integers(3, 60, 24).tolist() for _ in range(4)], shape=shape)


@FIXED
@given(data=st.data())
def test_as_many_biases_are_counted_as_compensation_writes(
    model: Any, shape: ModelShape, statistics: Any, data: Any
) -> None:
    cut = data.draw(cuts(shape))
    plan = dataclasses.replace(plan_of_cut(cut, shape), importance="flap")
    assert n_biases(shape, plan) == len(compensation(model, cut, statistics))
    plain = dataclasses.replace(plan, importance="taylor")
    more = memory_of(shape, plan).weights_bytes - memory_of(shape, plain).weights_bytes
    assert more == n_biases(shape, plan) * 4 * shape.width
    assert n_biases(shape, plain) == 0


def test_a_carried_adapter_is_held_against_the_masked_original(
    model: Any, shape: ModelShape, statistics: Any
) -> None:
    rng = np.random.default_rng(2)
    modules = {
        f"model.layers.{i}.{name}": (
            rng.normal(0, 0.3, (2, n_in)).astype(np.float32),
            rng.normal(0, 0.3, (n_out, 2)).astype(np.float32),
        )
        for i in range(4)
        for name, n_out, n_in in (("self_attn.q_proj", 64, 64), ("mlp.down_proj", 64, 96))
    }
    from tailoring_cuts import cut_of

    cut = cut_of(shape, (1, 2, 64), (2, 1, 32), (0, 1, 96), (2, 2, 96))
    carried = carry(modules, cut, shape)
    bias = compensation(model, cut, statistics)
    texts = [[5, 9, 11, 40, 3]]
    assert carry_error(model, cut, modules, carried, texts, compensation=bias) < 2e-3
    wrong = {name: (a[:, ::-1].copy(), b) for name, (a, b) in carried.items()}
    assert carry_error(model, cut, modules, wrong, texts, compensation=bias) > 0.05
    with pytest.raises(BadAdapter, match="has no module model"):
        merged(model, {"model.layers.9.mlp.up_proj": next(iter(modules.values()))})
