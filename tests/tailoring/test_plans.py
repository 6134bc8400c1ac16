"""Shapes, legal plans, rules and their files: D01, D02, D05, D10, D14."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tailoring_cuts import cut_of, cuts, plan_of, plan_of_cut, random_importance

from floe.core import gguf
from floe.core.errors import BadModel, BadPlan
from floe.core.files import folder_digest
from floe.tailoring.base import Budgets
from floe.tailoring.cut import check_built, check_cut, make_cut, whole_cut
from floe.tailoring.plan import LayerPlan, ModelShape
from floe.tailoring.plan_file import PlanFile, read_cut, read_plan, write_cut, write_plan
from floe.tailoring.rules import Rules, layer_bounds, matches
from floe.tailoring.shapes import (
    bounds,
    check_plan,
    n_parameters,
    real_ratios,
    round_plan,
    shape_of_gguf,
    shape_of_hf,
    whole_plan,
)  # fmt: skip
from floe.testing.tiny_layers import TinyLayers

TINY = ModelShape(
    base_digest="d" * 64, n_layers=4, width=64, n_kv_heads=2, q_per_kv=2, head_width=16, n_ffn=96,
    n_vocab=273,
)  # fmt: skip
WIDE = replace(TINY, n_layers=24, n_kv_heads=2, q_per_kv=8, n_ffn=4864)
ANYWHERE = Rules(guard_first=0, guard_last=0)


def hf_files(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    return config, {name: t.shape for name, t in tensors.items()}


def test_d02_shapes_come_from_configuration_and_tensors(layered: TinyLayers) -> None:
    config, shapes = hf_files(layered.folder)
    of_hf = shape_of_hf(config, shapes, base_digest="d" * 64)
    assert of_hf == TINY
    assert shape_of_gguf(gguf.read_header(layered.gguf), base_digest="d" * 64) == of_hf
    del config["head_dim"]  # an older configuration
    del config["num_key_value_heads"]
    with pytest.raises(BadModel, match=r"k_proj\.weight is \(32, 64\), the configuration says"):
        shape_of_hf(config, shapes, base_digest="d" * 64)
    config["num_key_value_heads"] = 2
    assert shape_of_hf(config, shapes, base_digest="d" * 64) == TINY


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"model_type": "mamba"}, {}, "family 'mamba' cannot be cut; llama, qwen2 can"),
        ({"num_attention_heads": 3}, {}, "describes no model"),
        ({"num_hidden_layers": 0}, {}, "describes no model"),
        ({"num_hidden_layers": 5}, {}, r"has no matrix model\.layers\.4\.self_attn\.q_proj"),
        ({}, {"model.layers.2.mlp.gate_proj.weight": (64, 64)}, "whose layers are all alike"),
        ({}, {"model.layers.0.self_attn.q_norm.weight": (16,)}, "normalises queries and keys"),
        ({}, {"model.embed_tokens.weight": (9,)}, r"has no matrix model\.embed_tokens\.weight"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(
    config: dict[str, Any], tensors: dict[str, Any], message: str, layered: TinyLayers
) -> None:
    own, shapes = hf_files(layered.folder)
    with pytest.raises(BadModel, match=message):
        shape_of_hf({**own, **config}, {**shapes, **tensors}, base_digest="d" * 64)


def test_a_pruned_file_is_no_base(layered: TinyLayers) -> None:
    header = gguf.read_header(layered.gguf)
    header.metadata["llama.feed_forward_length"] = np.asarray([96, 64, 96, 96])
    header.metadata["llama.attention.head_count"] = np.asarray([4, 2, 4, 4])
    with pytest.raises(BadModel, match=r"llama\.attention\.head_count differs by layer"):
        shape_of_gguf(header, base_digest="d" * 64)


def test_folder_digest_is_the_engines(layered: TinyLayers) -> None:
    from floe.engine.torch_engine import TorchEngine

    engine = TorchEngine(folder=layered.folder)
    assert folder_digest(layered.folder) == engine.info.digest
    engine.close()


# --- legality -----------------------------------------------------------------------------------


def test_d01_ratios_are_rounded_to_whole_kv_groups_and_the_real_ones_told() -> None:
    """16 query heads on 2 KV heads, ratio 0.3: 11.2 heads are no heads."""
    plan = round_plan(WIDE, [0.7] * 24, [0.7] * 24, rules=ANYWHERE)
    assert plan.layers[3] == LayerPlan(n_kv_heads=1, q_per_kv=8, n_ffn=3392)
    assert real_ratios(plan, WIDE)[3] == (0.5, 3392 / 4864)
    check_plan(plan, WIDE, rules=ANYWHERE)
    cut = make_cut(plan, WIDE, random_importance(WIDE, seed=0))
    for part in cut.layers:
        assert len(part.q_heads) % len(part.kv_heads) == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rounded_plans_are_always_legal(data: st.DataObject) -> None:
    ratios = st.lists(st.floats(0, 1), min_size=4, max_size=4)
    rules = Rules(
        guard_first=data.draw(st.integers(0, 2)), guard_last=data.draw(st.integers(0, 2)),
        ffn_multiple=data.draw(st.sampled_from([32, 64])),
        min_keep={"layers.1-2.*": data.draw(st.sampled_from([0.1, 0.5, 1.0]))},
    )  # fmt: skip
    plan = round_plan(TINY, data.draw(ratios), data.draw(ratios), rules=rules)
    check_plan(plan, TINY, rules=rules)
    for i, part in enumerate(plan.layers):
        if i < rules.guard_first or i >= 4 - rules.guard_last:
            assert part == whole_plan(TINY).layers[i]


def test_rounding_keeps_something(layered: TinyLayers) -> None:
    with pytest.raises(BadPlan, match="drops every layer"):
        round_plan(TINY, [0.0] * 4, [0.0] * 4, rules=ANYWHERE)
    with pytest.raises(BadPlan, match="one ratio for each of the 4 layers"):
        round_plan(TINY, [0.5], [0.5], rules=ANYWHERE)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ((3, 2, 96), "layer 2: n_kv_heads 3 is outside 0 to 2"),
        ((2, 3, 96), "layer 2: q_per_kv 3 is outside 1 to 2; every KV head keeps as many"),
        ((1, 0, 96), "layer 2: q_per_kv 0 is outside 1 to 2"),
        ((2, 2, 97), "layer 2: n_ffn 97 is outside 0 to 96"),
        ((2, 2, -32), "layer 2: n_ffn -32 is outside 0 to 96"),
        ((2, 2, 33), "layer 2: n_ffn 33 is no multiple of 32.*; take 32 or 64"),
    ],
)
def test_layers_that_cannot_be_built(layer: tuple[int, int, int], message: str) -> None:
    plan = plan_of(TINY, (2, 2, 96), (2, 2, 96), layer, (2, 2, 96))
    with pytest.raises(BadPlan, match=message):
        check_plan(plan, TINY)


def test_plans_that_cannot_be_built() -> None:
    whole = whole_plan(TINY)
    for plan, message in (
        (replace(whole, base_digest="e" * 64), "made for the base eeeeeeeeeeee, this is dddd"),
        (replace(whole, layers=whole.layers[:3]), "has 3 layers, the model 4; a layer to drop"),
        (plan_of(TINY, *[(0, 0, 0)] * 4), "drops every layer; keep at least one"),
        (replace(whole, quants={"head": "F16"}), "quants names 'head'; groups are embedding"),
        (replace(whole, quants={"ffn": "Q2_K"}), "gives ffn the type 'Q2_K'; types are F32"),
    ):
        with pytest.raises(BadPlan, match=message):
            check_plan(plan, TINY)
    check_plan(replace(whole, quants={"ffn": "Q4_0"}), TINY)


def test_an_odd_original_width_is_legal_whole() -> None:
    odd = replace(TINY, n_ffn=100)
    check_plan(whole_plan(odd), odd, rules=Rules())
    plan = round_plan(odd, [1.0] * 4, [1.0] * 4, rules=Rules())
    assert {part.n_ffn for part in plan.layers} == {100}


def test_the_first_and_last_layers_are_guarded_unless_told() -> None:
    plan = plan_of(TINY, (1, 2, 96), *[(2, 2, 96)] * 3)
    check_plan(plan, TINY)
    with pytest.raises(BadPlan, match=r"layer 0: keeps 1 KV heads, .* 2 \(the first and last"):
        check_plan(plan, TINY, rules=Rules())
    check_plan(plan, TINY, rules=Rules(guard_first=0))
    last = plan_of(TINY, *[(2, 2, 96)] * 3, (2, 1, 96))
    with pytest.raises(BadPlan, match="layer 3: keeps 1 query heads a KV head, its rules ask"):
        check_plan(last, TINY, rules=Rules())


def test_d14_only_the_ffn_of_layers_4_to_20_is_cut() -> None:
    rules = Rules(include=("layers.4-20.ffn",))
    plan = round_plan(WIDE, [0.5] * 24, [0.5] * 24, rules=rules)
    for i, part in enumerate(plan.layers):
        assert (part.n_kv_heads, part.q_per_kv) == (2, 8)
        assert part.n_ffn == (2432 if 4 <= i <= 20 else 4864)
    other = plan_of(WIDE, *[(2, 8, 4864)] * 2, (2, 8, 64), *[(2, 8, 4864)] * 21)
    with pytest.raises(BadPlan, match=r"layer 2: keeps 64 FFN channels.*no include pattern"):
        check_plan(other, WIDE, rules=rules)


def test_d14_excluded_and_least_shares() -> None:
    rules = Rules(exclude=("layers.5.*",), min_keep={"layers.*.ffn": 0.75, "layers.7.*": 0.9})
    plan = round_plan(WIDE, [0.0] * 24, [0.0] * 24, rules=rules)
    assert plan.layers[5] == whole_plan(WIDE).layers[5]
    assert (plan.layers[6].n_kv_heads, plan.layers[6].n_ffn) == (0, 3648)
    assert (plan.layers[7].n_kv_heads, plan.layers[7].n_ffn) == (2, 4384)
    assert layer_bounds(WIDE, rules, 5).ffn_reason == "exclude layers.5.* names it"
    assert bounds(WIDE, rules)[7].ffn_reason == "min_keep of layers.7.* is 0.9"
    coarse = Rules(ffn_multiple=256)
    odd = plan_of(WIDE, *[(2, 8, 4864)] * 3, (2, 8, 32), *[(2, 8, 4864)] * 20)
    with pytest.raises(BadPlan, match="layer 3: n_ffn 32 is no multiple of 256"):
        check_plan(odd, WIDE, rules=coarse)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"guard_first": -1}, "guard_first and guard_last are 0 or more"),
        ({"ffn_multiple": 48}, "ffn_multiple 48 is no multiple of 32"),
        ({"include": ("model.layers.4",)}, r"'model\.layers\.4' is no pattern; write e\.g\."),
        ({"exclude": ("layers.4.mlp",)}, r"'layers\.4\.mlp' is no pattern"),
        ({"min_keep": {"layers.*.*": 1.5}}, "is 1.5; shares are 0 to 1"),
    ],
)
def test_rules_that_say_nothing(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        Rules(**settings_)


def test_patterns() -> None:
    assert matches("layers.*.ffn", 3, "ffn")
    assert not matches("layers.*.ffn", 3, "attention")
    assert matches("layers.3-5.*", 5, "attention")
    assert not matches("layers.3-5.*", 6, "attention")
    assert not matches("layers.3.*", 33, "ffn")


def test_parameters_are_those_of_the_tensors(model: Any, shape: ModelShape) -> None:
    from floe.tailoring.on_torch.prune import prune_in_memory

    for layers in (((2, 2, 96),) * 4, ((1, 1, 32), (0, 2, 64), (2, 1, 0), (0, 1, 0))):
        small = prune_in_memory(model, cut_of(shape, *layers))
        assert n_parameters(plan_of(shape, *layers), shape) == sum(
            p.numel() for p in small.parameters()
        )


# --- cuts ---------------------------------------------------------------------------------------


def test_the_most_important_groups_stay() -> None:
    scores = random_importance(TINY, seed=4)
    plan = plan_of(TINY, (1, 1, 32), (2, 1, 64), (0, 1, 0), (2, 2, 96))
    cut = make_cut(plan, TINY, scores)
    assert [part.layer for part in cut.layers] == [0, 1, 3]
    kv = int(scores[0].kv_K.argmax())
    assert cut.layers[0].kv_heads == (kv,)
    assert cut.layers[0].q_heads == (2 * kv + int(scores[0].q_KG[kv].argmax()),)
    assert set(cut.layers[0].ffn) == set(np.argsort(scores[0].ffn_F)[-32:].tolist())
    assert cut.layers[1].q_heads == tuple(2 * k + int(scores[1].q_KG[k].argmax()) for k in (0, 1))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_d10_every_cut_has_the_sizes_of_its_plan(data: st.DataObject) -> None:
    cut = data.draw(cuts(TINY))
    check_cut(cut, TINY)
    check_built(cut, plan_of_cut(cut, TINY))


def test_d10_other_sizes_than_the_plan_are_refused() -> None:
    cut = cut_of(TINY, (2, 2, 96), (1, 1, 64), (2, 2, 96), (2, 2, 96))
    with pytest.raises(BadPlan, match=r"layer 1: built with .* \(1, 1, 64\), .* \(1, 2, 64\)"):
        check_built(cut, plan_of(TINY, (2, 2, 96), (1, 2, 64), (2, 2, 96), (2, 2, 96)))
    with pytest.raises(BadPlan, match="keeps other layers than the plan"):
        check_built(cut, plan_of(TINY, (2, 2, 96), (0, 0, 0), (2, 2, 96), (2, 2, 96)))


def test_scores_of_another_model_are_refused() -> None:
    plan, scores = whole_plan(TINY), random_importance(TINY, seed=0)
    with pytest.raises(BadPlan, match="3 importances for 4 layers"):
        make_cut(plan, TINY, scores[:3])
    short = replace(scores[2], ffn_F=scores[2].ffn_F[:5])
    with pytest.raises(BadPlan, match=r"importance of layer 2: ffn_F is \(5,\), not \(96,\)"):
        make_cut(plan, TINY, (*scores[:2], short, scores[3]))
    odd = replace(scores[2], kv_K=np.array([1.0, np.nan]))
    with pytest.raises(BadPlan, match="layer 2: kv_K has values that are no numbers"):
        make_cut(plan, TINY, (*scores[:2], odd, scores[3]))


def test_index_maps_of_another_model_are_refused() -> None:
    cut = whole_cut(TINY)
    part = cut.layers[1]

    def with_layer(**changes: Any) -> Any:
        return replace(cut, layers=(cut.layers[0], replace(part, **changes)))

    for wrong, message in (
        (replace(cut, base_digest="e" * 64), "index map is for the base eeeeeeeeeeee"),
        (replace(cut, layers=cut.layers[::-1]), r"layers \[3, 2, 1, 0\] are not ascending"),
        (replace(cut, layers=()), r"layers \[\] are not ascending"),
        (with_layer(layer=9), r"layers \[0, 9\] are not ascending layers of the model"),
        (with_layer(q_heads=(0, 1, 2)), r"query heads \[0, 1, 2\] are not equally many"),
        (with_layer(kv_heads=(), q_heads=(0,)), r"query heads \[0\] are not equally many"),
        (with_layer(ffn=(96,)), "layer 1 names heads or channels of no model"),
    ):
        with pytest.raises(BadPlan, match=message):
            check_cut(wrong, TINY)


# --- files --------------------------------------------------------------------------------------


def test_plans_survive_their_file(tmp_path: Path) -> None:
    file = PlanFile(
        plan=replace(
            plan_of(TINY, (2, 2, 96), (1, 1, 32), (0, 0, 0), (2, 2, 96)),
            quants={"ffn": "Q4_0"}, importance="flap", made_by="evolutionary, seed 3",
        ),
        budgets=Budgets(memory_bytes=123, decode_ms=7.5),
        rules=Rules(include=("layers.1-2.*",), min_keep={"layers.1.ffn": 0.3}),
    )  # fmt: skip
    write_plan(tmp_path / "plan.json", file)
    assert read_plan(tmp_path / "plan.json") == file
    bare = {"format": 1, "base_digest": "d", "layers": [asdict(file.plan.layers[0])]}
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    read = read_plan(tmp_path / "bare.json")
    assert (read.plan.importance, read.rules, read.budgets) == ("taylor", Rules(), Budgets())


@settings(max_examples=10, deadline=None)
@given(cut=cuts(TINY))
def test_d11_index_maps_survive_their_file(
    cut: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    write_cut(path, cut)
    assert read_cut(path) == cut


LAYER = {"n_kv_heads": 2, "q_per_kv": 2, "n_ffn": 96}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "is no plan of format 1; make it again"),
        ({"budget": {}}, "unknown key budget; did you mean budgets?"),
        ({"xyz": 1}, "unknown key xyz; keys are format, base_digest"),
        ({"layers": []}, "layers must be a list with at least one entry"),
        ({"layers": [3]}, r"layers\[0\] must be an object"),
        ({"layers": [{**LAYER, "n_fnn": 3}]}, r"unknown key layers\[0\]\.n_fnn; did you mean n_f"),
        ({"layers": [{**LAYER, "n_ffn": 3.5}]}, r"layers\[0\]\.n_ffn cannot be 3\.5; it is int"),
        ({"layers": [{**LAYER, "n_ffn": True}]}, r"n_ffn cannot be True"),
        ({"layers": [{"n_ffn": 3}]}, r"layers\[0\] lacks a value"),
        ({"budgets": {"decode_ms": "fast"}}, r"budgets\.decode_ms cannot be 'fast'"),
        ({"budgets": {"memory_mb": 3}}, r"unknown key budgets\.memory_mb"),
        ({"rules": {"include": "layers.*.*"}}, r"rules\.include cannot be 'layers"),
        ({"rules": {"include": [3]}}, r"rules\.include cannot be \(3,\)"),
        ({"rules": {"min_keep": {"layers.*.*": "half"}}}, r"rules\.min_keep cannot be"),
        ({"rules": {"guard_first": None}}, r"rules\.guard_first cannot be None"),
        ({"quants": {"ffn": 4}}, "quants must map tensor groups to types"),
        ({"base_digest": ""}, "base_digest, importance and made_by must be texts"),
    ],
)
def test_plan_files_that_say_something_else(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = {"format": 1, "base_digest": "d", "layers": [LAYER], **change}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BadPlan, match=message):
        read_plan(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"cannot read the plan .*none\.json: FileNotFoundError"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(BadPlan, match="is no JSON; write the index map again"):
        read_cut(tmp_path / "x.json")
    layer = {"layer": 0, "kv_heads": [1, 0], "q_heads": [0, 1], "ffn": [0]}
    data = {"format": 1, "base_digest": "d", "head_width": 16, "layers": [layer]}
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(BadPlan, match=r"layers\[0\]\.kv_heads must be ascending whole numbers"):
        read_cut(tmp_path / "x.json")
    layer["kv_heads"] = [0, 1]
    (tmp_path / "x.json").write_text(json.dumps({**data, "head_width": 0}))
    with pytest.raises(BadPlan, match="head_width must be a number above 0"):
        read_cut(tmp_path / "x.json")
