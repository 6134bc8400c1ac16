"""The smaller model computes what the masked full one does; D05, D08, D17."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailoring_cuts import cut_of, cuts

from floe.core.errors import BadModel
from floe.tailoring.cut import whole_cut
from floe.tailoring.on_torch.blocks import layers_of
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.prune import compensation, mask_model, prune, prune_in_memory
from floe.tailoring.plan import ModelShape

IDS = torch.tensor([[5, 40, 120, 9, 77, 200, 31, 8]])
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def logits(model: Any, ids: torch.Tensor = IDS) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        return np.asarray(model(input_ids=ids, use_cache=False).logits[0].float())


@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_pruned_equals_masked(data: st.DataObject, model: Any, shape: ModelShape) -> None:
    cut = data.draw(cuts(shape))
    small = prune_in_memory(model, cut)
    np.testing.assert_allclose(logits(small), logits(mask_model(model, cut)), atol=2e-4)


@settings(max_examples=10, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_pruned_equals_masked_with_biases(
    data: st.DataObject, qwen_model: Any, qwen_shape: ModelShape
) -> None:
    cut = data.draw(cuts(qwen_shape))
    small, masked = prune_in_memory(qwen_model, cut), mask_model(qwen_model, cut)
    np.testing.assert_allclose(logits(small), logits(masked), atol=2e-4)


@settings(max_examples=10, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_pruned_equals_masked_with_compensation(
    data: st.DataObject, model: Any, shape: ModelShape
) -> None:
    cut = data.draw(cuts(shape))
    extra = compensation(model, cut, collect(model, IDS.tolist(), shape=shape, taylor_tokens=0))
    small = prune_in_memory(model, cut, compensation=extra)
    masked = mask_model(model, cut, compensation=extra)
    np.testing.assert_allclose(logits(small), logits(masked), atol=5e-4)


def test_nothing_cut_shares_every_weight(model: Any, shape: ModelShape) -> None:
    small = prune_in_memory(model, whole_cut(shape))
    assert np.array_equal(logits(small), logits(model))
    old = {name: p.data_ptr() for name, p in model.named_parameters()}
    assert {name: p.data_ptr() for name, p in small.named_parameters()} == old


def test_the_original_stays_as_it_is(model: Any, shape: ModelShape) -> None:
    before, shapes = logits(model), [p.shape for p in model.parameters()]
    cut = cut_of(shape, (1, 1, 32), (0, 1, 64), (0, 1, 0), (2, 2, 0))
    prune_in_memory(model, cut)
    mask_model(model, cut)
    assert [p.shape for p in model.parameters()] == shapes
    assert np.array_equal(logits(model), before)
    assert model.config.num_hidden_layers == 4


def test_hooks_of_the_smaller_model_are_its_own(model: Any, shape: ModelShape) -> None:
    small = prune_in_memory(model, whole_cut(shape))
    seen: list[int] = []
    for module in (small, small.model, layers_of(small)[1], layers_of(small)[1].mlp):
        module.register_forward_hook(lambda *_: seen.append(1))
    logits(model)
    assert seen == []
    logits(small)
    assert len(seen) == 4


def test_pruned_may_be_trained_alone(model: Any, shape: ModelShape) -> None:
    before = logits(model)
    small = prune(model, cut_of(shape, (2, 2, 96), (1, 2, 32), (2, 1, 64), (2, 2, 96)))
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.5)
    assert np.array_equal(logits(model), before)


def test_d05_the_hidden_size_stays(model: Any, shape: ModelShape) -> None:
    small = prune_in_memory(model, cut_of(shape, (1, 1, 32), (1, 1, 32), (1, 2, 64), (2, 1, 32)))
    assert small.get_input_embeddings().weight.shape == (shape.n_vocab, shape.width)
    for layer in layers_of(small):
        assert layer.self_attn.o_proj.weight.shape[0] == shape.width
        assert layer.mlp.down_proj.weight.shape[0] == shape.width


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_d08_grouped_queries_in_both_precisions_on_the_cpu(
    dtype: torch.dtype, model: Any, shape: ModelShape
) -> None:
    import copy

    typed = copy.deepcopy(model).to(dtype)
    statistics = collect(typed, IDS.tolist(), shape=shape)
    cut = cut_of(shape, (2, 2, 96), (1, 1, 32), (2, 1, 64), (2, 2, 96))
    extra = compensation(typed, cut, statistics)
    small = prune_in_memory(typed, cut, compensation=extra)
    assert {p.dtype for p in small.parameters()} == {dtype}
    masked = mask_model(typed, cut, compensation=extra)
    np.testing.assert_allclose(
        logits(small), logits(masked), atol=1e-4 if dtype == torch.float32 else 0.5
    )


def test_d17_caches_of_different_heads_equal_no_cache(model: Any, shape: ModelShape) -> None:
    import transformers

    cut = cut_of(shape, (0, 1, 32), (2, 2, 96), (0, 1, 64), (1, 1, 0))
    small = prune_in_memory(model, cut)
    whole = logits(small)
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        steps = [
            small(input_ids=IDS[:, t : t + 1], past_key_values=cache, use_cache=True).logits[0, 0]
            for t in range(IDS.shape[1])
        ]
    np.testing.assert_allclose(torch.stack(steps).numpy(), whole, atol=2e-4)


def test_compensation_keeps_the_mean_of_an_output(model: Any, shape: ModelShape) -> None:
    """On the calibration text a cut FFN gives the mean output it gave before, but for rounding."""
    statistics = collect(model, IDS.tolist(), shape=shape, taylor_tokens=0)
    cut = cut_of(shape, (2, 2, 32), *[(2, 2, 96)] * 3)
    extra = compensation(model, cut, statistics)
    assert set(extra) == {(0, "ffn")}
    means = {}
    for name, some in (
        ("whole", model),
        ("cut", prune_in_memory(model, cut, compensation=extra)),
        ("bare", prune_in_memory(model, cut)),
    ):
        seen: list[torch.Tensor] = []
        hook = layers_of(some)[0].mlp.register_forward_hook(
            lambda _, __, out, seen=seen: seen.append(out)
        )
        logits(some)
        hook.remove()
        means[name] = seen[0][0].mean(0).numpy()
    np.testing.assert_allclose(means["cut"], means["whole"], atol=1e-5)
    assert np.abs(means["bare"] - means["whole"]).max() > 0.01


def test_compensation_of_a_dropped_half_goes_to_the_one_before(
    model: Any, shape: ModelShape
) -> None:
    statistics = collect(model, IDS.tolist(), shape=shape, taylor_tokens=0)
    cut = cut_of(shape, (2, 2, 96), (0, 1, 96), (2, 2, 0), (2, 2, 96))
    extra = compensation(model, cut, statistics)
    assert set(extra) == {(0, "ffn"), (2, "attention")}
    first = model.model.layers[1].self_attn.o_proj.weight.numpy() @ statistics.layers[
        1
    ].attention.mean.astype(np.float32)
    np.testing.assert_allclose(extra[(0, "ffn")].numpy(), first, atol=1e-5)


def test_sliding_windows_are_refused(model: Any, shape: ModelShape) -> None:
    import copy

    odd = copy.copy(model)
    odd.config = copy.deepcopy(model.config)
    odd.config.layer_types = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(BadModel, match="sliding_attention cannot be cut; only full attention"):
        prune_in_memory(odd, whole_cut(shape))
