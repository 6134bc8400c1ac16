"""Every criterion against an obvious loop on a tiny model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from floe.core.errors import BadPlan, BadRequest
from floe.tailoring.base import Importance
from floe.tailoring.on_torch.blocks import layers_of
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.importance import CRITERIA, make_importance
from floe.tailoring.plan import ModelShape
from floe.tailoring.statistics import Statistics

TEXTS = [[5, 40, 120, 9, 77, 200, 31, 8], [250, 17, 17, 3, 90], [60, 61, 62]]


@pytest.fixture(scope="module")
def statistics(model: Any, shape: ModelShape) -> Statistics:
    return collect(model, TEXTS, shape=shape)


def seen_inputs(model: Any, path: str) -> torch.Tensor:
    """All inputs (T, I) of a module over TEXTS, kept whole."""
    kept: list[torch.Tensor] = []
    hook = model.get_submodule(path).register_forward_pre_hook(lambda _, a: kept.append(a[0][0]))
    with torch.inference_mode():
        for text in TEXTS:
            model(input_ids=torch.tensor([text]), use_cache=False)
    hook.remove()
    return torch.cat(kept).double()


def test_taylor_is_the_sum_of_weight_times_gradient(
    model: Any, shape: ModelShape, statistics: Statistics
) -> None:
    twin = copy.deepcopy(model).requires_grad_(True)
    for text in TEXTS:
        ids = torch.tensor([text])
        scores = twin(input_ids=ids, use_cache=False).logits[0, :-1]
        torch.nn.functional.cross_entropy(scores, ids[0, 1:], reduction="sum").backward()
    found = make_importance("taylor", statistics=statistics).measure()
    hd = shape.head_width
    for layer, record in zip(layers_of(twin), found, strict=True):
        part = {
            name: (m.weight * m.weight.grad).abs().detach().double()
            for name, m in layer.named_modules()
            if isinstance(m, torch.nn.Linear)
        }
        for kv in range(shape.n_kv_heads):
            group = float(part["self_attn.k_proj"][kv * hd : (kv + 1) * hd].sum())
            group += float(part["self_attn.v_proj"][kv * hd : (kv + 1) * hd].sum())
            for g in range(shape.q_per_kv):
                rows = slice((kv * shape.q_per_kv + g) * hd, (kv * shape.q_per_kv + g + 1) * hd)
                head = float(part["self_attn.q_proj"][rows].sum())
                head += float(part["self_attn.o_proj"][:, rows].sum())
                assert record.q_KG[kv, g] == pytest.approx(head, rel=1e-4)
                group += head
            assert record.kv_K[kv] == pytest.approx(group, rel=1e-4)
        for f in range(0, shape.n_ffn, 7):
            channel = part["mlp.gate_proj"][f].sum() + part["mlp.up_proj"][f].sum()
            channel = float(channel + part["mlp.down_proj"][:, f].sum())
            assert record.ffn_F[f] == pytest.approx(channel, rel=1e-4)


def test_flap_is_the_two_pass_variance_times_the_columns_square(
    model: Any, shape: ModelShape, statistics: Statistics
) -> None:
    found = make_importance("flap", statistics=statistics).measure()
    for i, record in enumerate(found):
        x_TF = seen_inputs(model, f"model.layers.{i}.mlp.down_proj")
        weight = model.get_parameter(f"model.layers.{i}.mlp.down_proj.weight").double()
        mean = x_TF.sum(0) / len(x_TF)
        wanted = ((x_TF - mean) ** 2).sum(0) / len(x_TF) * (weight**2).sum(0)
        np.testing.assert_allclose(record.ffn_F, wanted.numpy(), rtol=1e-4)
        x_TI = seen_inputs(model, f"model.layers.{i}.self_attn.o_proj")
        weight = model.get_parameter(f"model.layers.{i}.self_attn.o_proj.weight").double()
        wanted = x_TI.var(0, correction=0) * (weight**2).sum(0)
        heads = wanted.numpy().reshape(-1, shape.head_width).sum(1)
        np.testing.assert_allclose(record.q_KG.reshape(-1), heads, rtol=1e-4)
        np.testing.assert_allclose(
            record.kv_K, heads.reshape(shape.n_kv_heads, -1).sum(1), rtol=1e-4
        )


def test_wanda_is_the_weight_times_the_norm_of_its_input(
    model: Any, statistics: Statistics
) -> None:
    found = make_importance("wanda-sp", statistics=statistics).measure()
    for i, record in enumerate(found):
        x_TF = seen_inputs(model, f"model.layers.{i}.mlp.down_proj")
        weight = model.get_parameter(f"model.layers.{i}.mlp.down_proj.weight").double()
        for f in range(0, len(record.ffn_F), 9):
            wanted = sum(abs(float(w)) * float(x_TF[:, f].norm()) for w in weight[:, f])
            assert record.ffn_F[f] == pytest.approx(wanted, rel=1e-4)


def test_magnitude_needs_no_text(model: Any, shape: ModelShape, statistics: Statistics) -> None:
    importance = make_importance("magnitude", statistics=statistics)
    record = importance.measure()[1]
    mlp = layers_of(model)[1].mlp
    wanted = mlp.gate_proj.weight.abs().sum(1) + mlp.up_proj.weight.abs().sum(1)
    wanted = wanted + mlp.down_proj.weight.abs().sum(0)
    np.testing.assert_allclose(record.ffn_F, wanted.double().numpy(), rtol=1e-5)
    assert importance.facts() == {"calibration_tokens": 0}


def test_block_influence_is_one_minus_the_mean_cosine(model: Any, statistics: Statistics) -> None:
    found = make_importance("block-influence", statistics=statistics).measure()
    before = [seen_inputs(model, f"model.layers.{i}.input_layernorm") for i in range(4)]
    middle = [seen_inputs(model, f"model.layers.{i}.post_attention_layernorm") for i in range(4)]
    after = [*before[1:], seen_inputs(model, "model.norm")]
    for record, a, b, c in zip(found, before, middle, after, strict=True):
        for value, x, y in ((record.attention, a, b), (record.ffn, b, c), (record.block, a, c)):
            cosine = (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))
            assert value == pytest.approx(1.0 - float(cosine.mean()), abs=1e-5)


def test_random_is_the_same_for_the_same_seed(statistics: Statistics) -> None:
    def drawn(seed: int) -> np.ndarray[Any, Any]:
        importance = make_importance("random", statistics=statistics, seed=seed)
        assert importance.facts()["seed"] == seed
        return importance.measure()[3].ffn_F

    assert np.array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_keeps_the_protocol(
    name: str, shape: ModelShape, statistics: Statistics
) -> None:
    importance: Importance = make_importance(name, statistics=statistics)
    assert importance.name == name
    records = importance.measure()
    assert len(records) == shape.n_layers
    for record in records:
        assert record.kv_K.shape == (shape.n_kv_heads,)
        assert record.q_KG.shape == (shape.n_kv_heads, shape.q_per_kv)
        assert record.ffn_F.shape == (shape.n_ffn,)
        assert min(record.kv_K.min(), record.q_KG.min(), record.ffn_F.min()) >= 0.0
    assert "calibration_tokens" in importance.facts()


def test_an_unknown_criterion_is_refused_by_name(statistics: Statistics) -> None:
    with pytest.raises(BadPlan, match="no importance is called 'tailor'; there are taylor"):
        make_importance("tailor", statistics=statistics)


def test_collecting_leaves_the_model_as_it_was(model: Any, shape: ModelShape) -> None:
    twin = copy.deepcopy(model).train()
    twin.model.norm.weight.requires_grad_(True)
    collect(twin, TEXTS, shape=shape)
    assert twin.training
    assert [n for n, p in twin.named_parameters() if p.requires_grad] == ["model.norm.weight"]
    assert all(p.grad is None for p in twin.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())


def test_going_back_stops_at_the_asked_tokens(model: Any, shape: ModelShape) -> None:
    statistics = collect(model, TEXTS, shape=shape, taylor_tokens=8)
    facts = statistics.facts()
    assert (facts["calibration_tokens"], facts["taylor_tokens"]) == (16, 8)
    none = collect(model, TEXTS, shape=shape, taylor_tokens=0)
    assert not none.layers[0].taylor.ffn_F.any()
    np.testing.assert_allclose(none.layers[2].ffn.variance, statistics.layers[2].ffn.variance)


def test_calibration_without_text_is_refused(model: Any, shape: ModelShape) -> None:
    with pytest.raises(BadRequest, match="at least one sequence of two tokens"):
        collect(model, [[3], []], shape=shape)
