"""A pruned model as a folder: D04, D07, D10, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailoring_cuts import cut_of, cuts, load_here, load_model, reload_here

from floe.core.errors import BadModel, BadPlan
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.hf_export import CUT_FILE, HfExport, export_hf, layer_sizes
from floe.tailoring.on_torch.prune import compensation, mask_model, prune, prune_in_memory
from floe.tailoring.on_torch.reload import log_probs_of, reload_in_child
from floe.tailoring.plan import Cut, ModelShape
from floe.tailoring.plan_file import read_cut
from floe.testing.tiny_layers import TinyLayers

UNEVEN = ((2, 2, 96), (0, 1, 64), (1, 2, 0), (2, 1, 96))
TEXTS = [[5, 40, 120, 9, 77, 200, 31, 8]]


def export(model: Any, target: Path, base: TinyLayers, cut: Cut, **options: Any) -> HfExport:
    options = {"reload": reload_here, **options}
    return export_hf(model, target, source=base.folder, cut=cut, **options)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_folder_computes_what_the_masked_model_does(
    data: st.DataObject,
    model: Any,
    shape: ModelShape,
    layered: TinyLayers,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cut = data.draw(cuts(shape))
    extra = None
    if data.draw(st.booleans()):
        extra = compensation(model, cut, collect(model, TEXTS, shape=shape, taylor_tokens=0))
    small = prune_in_memory(model, cut, compensation=extra)
    target = tmp_path_factory.mktemp("out") / "small"
    export(small, target, layered, cut)
    masked = log_probs_of(mask_model(model, cut, compensation=extra), TEXTS)
    np.testing.assert_allclose(reload_here(target, TEXTS)[0], masked[0], atol=1e-3)


def test_d04_uneven_layers_reload_in_a_new_process_with_their_own_code(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    small = prune(model, cut)
    done = export_hf(small, tmp_path / "small", source=layered.folder, cut=cut)
    assert not done.is_plain
    assert done.max_error <= 1e-4
    config = json.loads((done.folder / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == (
        "tailored_modeling.TailoredLlamaForCausalLM"
    )
    assert [s["n_ffn"] for s in config["layer_sizes"]] == [96, 64, 0, 96]
    assert read_cut(done.folder / CUT_FILE) == cut
    assert load_here(done.folder).generate(
        torch.tensor(TEXTS), max_new_tokens=4, do_sample=False, pad_token_id=0
    ).shape == (1, 12)


def test_d04_even_layers_make_a_plain_llama(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *[(1, 2, 64)] * 3, (0, 1, 0))
    done = export(prune(model, cut), tmp_path / "small", layered, cut)
    assert done.is_plain
    assert not (done.folder / "tailored_modeling.py").exists()
    config = json.loads((done.folder / "config.json").read_text())
    sizes = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    assert [config[name] for name in sizes] == [3, 2, 1, 16]
    assert (config["intermediate_size"], config["architectures"]) == (64, ["LlamaForCausalLM"])
    assert type(load_model(done.folder)).__name__ == "LlamaForCausalLM"


def test_compensated_even_layers_are_still_a_plain_llama(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, (2, 2, 64), (2, 2, 64), (2, 2, 64), (2, 2, 64))
    extra = compensation(model, cut, collect(model, TEXTS, shape=shape, taylor_tokens=0))
    done = export(prune(model, cut, compensation=extra), tmp_path / "small", layered, cut)
    assert done.is_plain
    config = json.loads((done.folder / "config.json").read_text())
    assert (config["attention_bias"], config["mlp_bias"]) == (False, True)


def test_an_exported_folder_can_be_exported_again(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    """Recovery loads the folder, trains, and writes it anew."""
    cut = cut_of(shape, *UNEVEN)
    first = export(prune(model, cut), tmp_path / "one", layered, cut)
    again = export(load_here(first.folder), tmp_path / "two", layered, cut)
    assert again.digest == first.digest


def test_qwen2_keeps_its_biases(
    qwen_model: Any, qwen_shape: ModelShape, with_biases: TinyLayers, tmp_path: Path
) -> None:
    for name, layers, is_plain in (
        ("even", [(1, 2, 64)] * 4, True),
        ("uneven", UNEVEN, False),
    ):
        cut = cut_of(qwen_shape, *layers)
        done = export(prune(qwen_model, cut), tmp_path / name, with_biases, cut)
        assert done.is_plain == is_plain
        masked = log_probs_of(mask_model(qwen_model, cut), TEXTS)
        np.testing.assert_allclose(reload_here(done.folder, TEXTS)[0], masked[0], atol=1e-3)


def test_d07_safetensors_alone_and_everything_else_survives(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    import transformers

    cut = cut_of(shape, *UNEVEN)
    done = export(prune(model, cut), tmp_path / "small", layered, cut)
    assert {p.name for p in done.folder.iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
        CUT_FILE, "tailored_modeling.py",
    }  # fmt: skip
    old, new = (
        transformers.PreTrainedTokenizerFast.from_pretrained(f)
        for f in (layered.folder, done.folder)
    )
    assert new("the other thing").input_ids == old("the other thing").input_ids
    assert new.chat_template == old.chat_template
    small = load_here(done.folder)
    assert small.lm_head.weight.data_ptr() == small.model.embed_tokens.weight.data_ptr()
    assert small.lm_head.weight.shape[0] == layered.n_vocab + 5  # padded rows


def test_d10_a_model_of_other_sizes_than_the_cut_is_not_written(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut, other = cut_of(shape, *UNEVEN), cut_of(shape, *UNEVEN[:3], (2, 1, 64))
    with pytest.raises(BadPlan, match=r"layer 3 was built with .* \(2, 2, 96\), asked were"):
        export(prune(model, cut), tmp_path / "small", layered, other)
    short = cut_of(shape, *UNEVEN[:3], (0, 1, 0))
    with pytest.raises(BadPlan, match="the model has 4 layers, the cut 3"):
        export(prune(model, cut), tmp_path / "small", layered, short)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a: [x + 0.5 for x in a], "differs by 0.5 from the one that was saved"),
        (lambda a: [x * np.nan for x in a], "differs by nan"),
        (lambda a: [x[:-1] for x in a], "gives other shapes"),
    ],
)
def test_a_folder_that_computes_something_else_is_not_left_behind(
    wrong: Any, message: str, model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    with pytest.raises(BadModel, match=message):
        export(
            prune(model, cut), tmp_path / "small", layered, cut,
            reload=lambda folder, texts: wrong(reload_here(folder, texts)),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stays(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    (tmp_path / "small").mkdir()
    cut = cut_of(shape, *UNEVEN)
    with pytest.raises(BadPlan, match="exists; give a new folder"):
        export(prune(model, cut), tmp_path / "small", layered, cut)


def test_a_folder_that_cannot_be_loaded_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho ValueError: no such model >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(failing))
    with pytest.raises(BadModel, match="cannot be loaded again: ValueError: no such model"):
        reload_in_child(tmp_path, TEXTS)


def test_a_head_that_is_not_tied_though_said_so_is_refused(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    small = prune(model, cut)
    small.lm_head.weight = torch.nn.Parameter(small.lm_head.weight.clone() + 1.0)
    with pytest.raises(BadModel, match="head and embeddings differ though"):
        export(small, tmp_path / "small", layered, cut)


def test_sizes_come_from_tensors(model: Any, shape: ModelShape) -> None:
    small = prune_in_memory(model, cut_of(shape, *UNEVEN))
    assert [(s["n_heads"], s["n_kv_heads"], s["n_ffn"]) for s in layer_sizes(small)] == [
        (4, 2, 96), (0, 0, 64), (2, 1, 0), (2, 2, 96),
    ]  # fmt: skip
