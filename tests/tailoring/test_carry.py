"""Adapters carried to a pruned model and back; D11."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailoring_cuts import cut_of, cuts

from floe.core import gguf
from floe.core.errors import BadAdapter, BadPlan
from floe.core.layer_names import interleave
from floe.engine.llamacpp import LlamaCppEngine
from floe.tailoring.carry import GGUF_NAMES, HF_NAMES, Modules, carry, restore
from floe.tailoring.cut import whole_cut
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.on_torch.prune import mask_model, prune_in_memory
from floe.tailoring.on_torch.reload import log_probs_of
from floe.tailoring.plan import ModelShape
from floe.tailoring.tensors import cut_tensors, from_gguf
from floe.testing.tiny_layers import TinyLayers, TinyShape, linears_of

TEXTS = [[5, 40, 120, 9, 77, 200, 31, 8]]
RANK = 3
UNEVEN = ((2, 2, 96), (1, 2, 32), (2, 1, 64), (0, 1, 96))


def random_adapter(shape: ModelShape, *, seed: int, gguf_names: bool = False) -> Modules:
    rng = np.random.default_rng(seed)
    names = GGUF_NAMES if gguf_names else HF_NAMES
    found = {}
    for i in range(shape.n_layers):
        for kind, n_out, n_in in linears_of(TinyShape()).values():
            a = rng.normal(0, 0.3, (RANK, n_in)).astype(np.float32)
            b = rng.normal(0, 0.3, (n_out, RANK)).astype(np.float32)
            found[names.make(i, kind)] = (a, b)
    return found


def merged(model: Any, modules: Modules) -> Any:
    """The model with W + B A: what an adapter does, said directly."""
    twin = copy.deepcopy(model)
    for name, (a, b) in modules.items():
        twin.get_submodule(name).weight.data += torch.from_numpy(b @ a)
    return twin


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_d11_carried_adapters_do_what_they_do_on_the_masked_full_model(
    data: st.DataObject, model: Any, shape: ModelShape
) -> None:
    cut = data.draw(cuts(shape))
    adapter = random_adapter(shape, seed=data.draw(st.integers(0, 9)))
    small = merged(prune_in_memory(model, cut), carry(adapter, cut, shape))
    masked = mask_model(merged(model, adapter), cut)
    np.testing.assert_allclose(
        log_probs_of(small, TEXTS)[0], log_probs_of(masked, TEXTS)[0], atol=2e-3
    )


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_d11_restored_adapters_have_zeros_where_something_was_removed(
    data: st.DataObject, model: Any, shape: ModelShape
) -> None:
    """Trained on the pruned model, mapped to the full one: cut again, it is the same adapter."""
    cut = data.draw(cuts(shape))
    trained = carry(random_adapter(shape, seed=3), cut, shape)
    full = restore(trained, cut, shape)
    again = carry(full, cut, shape)
    assert again.keys() == trained.keys()
    for name, (a, b) in trained.items():
        assert np.array_equal(again[name][0], a)
        assert np.array_equal(again[name][1], b)
    changed = merged(model, full)
    small = merged(prune_in_memory(model, cut), trained)
    np.testing.assert_allclose(
        log_probs_of(small, TEXTS)[0], log_probs_of(mask_model(changed, cut), TEXTS)[0], atol=2e-3
    )
    for name, (a, b) in full.items():
        kept = sum(x.size for x in trained_pair(trained, name, cut))
        assert np.count_nonzero(a) + np.count_nonzero(b) <= kept


def trained_pair(trained: Modules, full_name: str, cut: Any) -> tuple[Any, Any]:
    parsed = HF_NAMES.parse(full_name)
    assert parsed is not None
    new = [part.layer for part in cut.layers].index(parsed[0])
    return trained[HF_NAMES.make(new, parsed[1])]


def test_nothing_cut_changes_nothing(shape: ModelShape) -> None:
    adapter = random_adapter(shape, seed=0)
    for found in (
        carry(adapter, whole_cut(shape), shape),
        restore(adapter, whole_cut(shape), shape),
    ):
        assert found.keys() == adapter.keys()
        for name, (a, b) in adapter.items():
            assert np.array_equal(found[name][0], a)
            assert np.array_equal(found[name][1], b)


def test_both_spellings_are_cut_alike(shape: ModelShape) -> None:
    """GGUF's interleaved rows of the carried HF adapter = the carried rows of GGUF's."""
    cut = cut_of(shape, *UNEVEN)

    def as_gguf(modules: Modules) -> dict[str, Any]:
        out = {}
        for name, (a, b) in modules.items():
            parsed = HF_NAMES.parse(name)
            assert parsed is not None
            is_turned = parsed[1] in ("attn_q", "attn_k")
            out[GGUF_NAMES.make(*parsed)] = (a, interleave(b, 16) if is_turned else b)
        return out

    adapter = random_adapter(shape, seed=1)
    one = as_gguf(carry(adapter, cut, shape))
    two = carry(as_gguf(adapter), cut, shape, names=GGUF_NAMES)
    assert one.keys() == two.keys()
    for name in one:
        assert np.array_equal(one[name][0], two[name][0])
        assert np.array_equal(one[name][1], two[name][1])


def test_a_carried_adapter_is_served_as_on_the_masked_model(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    target = tmp_path / "small.gguf"
    done = export_gguf(
        cut_tensors(from_gguf(layered.gguf), cut), target, metadata_from=layered.gguf
    )
    adapter = random_adapter(shape, seed=5)
    tensors = {}
    for name, (a, b) in carry(adapter, cut, shape).items():
        parsed = HF_NAMES.parse(name)
        assert parsed is not None
        is_turned = parsed[1] in ("attn_q", "attn_k")
        stem = f"{GGUF_NAMES.make(*parsed)}.weight.lora_"
        tensors |= {stem + "a": a, stem + "b": interleave(b, 16) if is_turned else b}
    gguf.write(
        tmp_path / "lora.gguf",
        {
            "general.type": "adapter", "general.architecture": done.architecture,
            "adapter.type": "lora", "adapter.lora.alpha": 0.0,
        },
        tensors,
    )  # fmt: skip
    engine = LlamaCppEngine(
        target, threads=1, context_tokens=64, max_contexts=1, sessions_per_context=1, kv_f32=True
    )
    handle = engine.load_adapter(tmp_path / "lora.gguf", key="k")
    session = engine.session([(handle, 1.0)], prompt=[], max_tokens=32).result(10)
    served = session.feed(TEXTS[0], every=True)
    session.close()
    engine.close()
    (masked,) = log_probs_of(mask_model(merged(model, adapter), cut), TEXTS)
    masked = masked[:, : layered.n_vocab]
    masked = masked - np.logaddexp.reduce(masked, axis=1, keepdims=True)
    np.testing.assert_allclose(served, masked, atol=2e-2)
    (plain,) = log_probs_of(prune_in_memory(model, cut), TEXTS)
    assert np.abs(plain[:, : layered.n_vocab] - served).max() > 1.0


def test_modules_outside_the_layers_stay(shape: ModelShape) -> None:
    pair = (np.ones((2, 64), np.float32), np.ones((9, 2), np.float32))
    cut = cut_of(shape, *UNEVEN)
    assert carry({"lm_head": pair}, cut, shape) == {"lm_head": pair}
    assert restore({"lm_head": pair}, cut, shape) == {"lm_head": pair}


def test_d11_a_wrong_shape_names_the_map_to_use(shape: ModelShape) -> None:
    cut = cut_of(shape, *UNEVEN)
    adapter = random_adapter(shape, seed=0)
    name = "model.layers.1.mlp.up_proj"
    with pytest.raises(BadAdapter, match=r"the pruned model's is 32 x 64\. Take the index map"):
        restore({name: adapter[name]}, cut, shape)
    small = carry(adapter, cut, shape)
    with pytest.raises(BadAdapter, match=r"the full model's is 96 x 64.*floe_cut\.json"):
        carry({name: small[name]}, cut, shape)


def test_what_cannot_be_carried_is_refused(shape: ModelShape) -> None:
    from dataclasses import replace

    cut = cut_of(shape, *UNEVEN)
    pair = (np.ones((2, 64), np.float32), np.ones((64, 2), np.float32))
    q = "model.layers.{}.self_attn.q_proj"
    for modules, message in (
        ({q.format(4): pair}, r"the full model has no model\.layers\.4\.self_attn\.q_proj"),
        ({"model.layers.0.input_layernorm": pair}, "is no linear layer that can be cut"),
        ({q.format(0): (pair[0], pair[1][:, :1])}, r"not \(R, I\) and \(O, R\)"),
        ({q.format(3): pair}, "nothing of the adapter is left"),
    ):
        with pytest.raises(BadAdapter, match=message):
            carry(modules, cut, shape)
    with pytest.raises(BadAdapter, match=r"the pruned model has no model\.layers\.3\.self_attn"):
        restore({q.format(3): pair}, cut, shape)
    with pytest.raises(BadPlan, match="the index map is for the base eeee"):
        carry({q.format(0): pair}, replace(cut, base_digest="e" * 64), shape)
