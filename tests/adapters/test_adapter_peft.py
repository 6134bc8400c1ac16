"""PEFT folders: what is honoured, and what is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from floe.adapters import names
from floe.adapters.lora import MAX_CHANGE, base_name, change_rms
from floe.adapters.peft import read_peft
from floe.adapters.peft_config import read_config
from floe.adapters.safetensors import parse_safetensors
from floe.core.errors import BadAdapter

QWEN = toys.model("qwen2")
Q0 = "self_attn.q_proj"


def refused(path: Path, *messages: str, **options: Any) -> str:
    with pytest.raises(BadAdapter) as caught:
        read_peft(path, options.pop("model", QWEN), **options)
    for message in messages:
        assert re.search(message, caught.value.message), caught.value.message
    return caught.value.message


def test_pairs_are_named_and_scaled(tmp_path: Path) -> None:
    lora = read_peft(toys.folder(tmp_path), QWEN)
    values = toys.tensors()
    assert sorted(lora.pairs) == ["blk.0.attn_q", "blk.0.attn_v", "blk.1.attn_q", "blk.1.attn_v"]
    assert (lora.rank, lora.base, lora.architecture) == (4, "Toys/Tiny-Toy", "qwen2")
    np.testing.assert_array_equal(lora.pairs["blk.1.attn_q"].a_RI, values[toys.key(1, Q0, "A")])
    np.testing.assert_array_equal(lora.pairs["blk.1.attn_q"].b_OR, 2 * values[toys.key(1, Q0, "B")])


@pytest.mark.parametrize("infix", ["", ".default", ".my-adapter"])
def test_adapter_names_inside_keys_are_accepted(tmp_path: Path, infix: str) -> None:
    values = {re.sub(r"(lora_[AB])", rf"\1{infix}", k): v for k, v in toys.tensors().items()}
    assert len(read_peft(toys.folder(tmp_path, values), QWEN).pairs) == 4


@pytest.mark.parametrize("architecture", ["llama", "deci", "qwen2", "qwen3"])
def test_rows_of_q_and_k_are_reordered_only_where_the_base_is(
    tmp_path: Path, architecture: str
) -> None:
    modules = (Q0, "self_attn.k_proj", "self_attn.v_proj")
    values = toys.tensors(modules=modules)
    lora = read_peft(toys.folder(tmp_path, values, lora_alpha=4), toys.model(architecture))
    for module, heads in zip(modules, (toys.HEADS, toys.KV_HEADS, 1), strict=True):
        b = values[toys.key(0, module, "B")]
        expected = b
        if architecture in ("llama", "deci") and heads > 1:
            half = b.shape[0] // heads // 2
            rows = [  # row 2j + s of a head comes from row s * half + j
                head * 2 * half + s * half + j
                for head in range(heads)
                for j in range(half)
                for s in range(2)
            ]
            expected = b[rows]
        np.testing.assert_array_equal(lora.pairs[f"blk.0.{toys.GGUF[module]}"].b_OR, expected)


def test_a14_a16_scales_follow_patterns_and_rslora(tmp_path: Path) -> None:
    values = toys.tensors()
    rng = np.random.default_rng(1)
    values[toys.key(1, Q0, "A")] = rng.normal(0, 0.2, (9, 64)).astype(np.float32)
    values[toys.key(1, Q0, "B")] = rng.normal(0, 0.2, (64, 9)).astype(np.float32)
    patterns = {
        "rank_pattern": {r"layers.1.self_attn.q_proj": 9},
        "alpha_pattern": {r".*\.1\.self_attn\.q_proj": 36, "v_proj": 12},
    }
    for rslora in (False, True):
        folder = toys.folder(tmp_path, values, use_rslora=rslora, **patterns)
        lora = read_peft(folder, QWEN)
        for name, scale in (
            ("blk.0.attn_q", 8 / (2 if rslora else 4)),
            ("blk.1.attn_q", 36 / (3 if rslora else 9)),
            ("blk.1.attn_v", 12 / (2 if rslora else 4)),
        ):
            source = values[toys.key(int(name[4]), f"self_attn.{name[-1]}_proj", "B")]
            np.testing.assert_allclose(lora.pairs[name].b_OR, scale * source, rtol=1e-6)
        assert lora.rank == 9


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora: DoRA is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: whole modules"),
        ({"lora_bias": True}, "lora_bias: a bias beside B"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: single embedding rows"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: transposed"),
        ({"target_parameters": ["w"]}, "target_parameters: single parameters"),
        ({"layer_replication": [[0, 1]]}, "layer_replication: layers were replicated"),
        ({"use_qalora": True}, "use_qalora: QA-LoRA"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens: it is active only"),
        ({"loftq_config": {"loftq_bits": 4}}, "loftq_config: LoftQ changes"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3': only LORA"),
        ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
        ({"r": 0}, "r must be a whole number"),
        ({"r": True}, "r must be a whole number"),
        ({"lora_alpha": "8"}, "lora_alpha must be a finite number"),
        ({"use_rslora": "yes"}, "use_rslora must be true or false"),
        ({"rank_pattern": [1]}, "rank_pattern must be a table"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: 'q_proj' must map to a number"),
        ({"alpha_pattern": {"(": 3}}, "is not a simple pattern"),
        ({"alpha_pattern": {"(a+)+": 3}}, "is not a simple pattern"),
        ({"alpha_pattern": {".*.*.*.*.*x": 3}}, "is not a simple pattern"),
        ({"r": 5}, "matrices have rank 4, the config says 5"),
        ({"lora_alpha": 0}, "has no effect"),
        ({"base_model_name_or_path": "Other/Llama-3"}, "was trained on 'Other/Llama-3'"),
        ({"base_model_name_or_path": None}, "names no base model"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    refused(toys.folder(tmp_path, **config), message)


def test_any_base_softens_only_the_name(tmp_path: Path) -> None:
    folder = toys.folder(tmp_path, base_model_name_or_path="other")
    assert read_peft(folder, QWEN, any_base=True).base == "other"
    refused(
        toys.folder(tmp_path, base_model_name_or_path="other", use_dora=True), "DoRA", any_base=True
    )


def test_base_names_are_compared_in_one_spelling() -> None:
    same = [
        "Org/Tiny_Toy",
        "/models/tiny-toy/",
        "C:\\models\\Tiny-Toy",
        "Tiny Toy",
        "tiny-toy.gguf",
    ]
    same += ["Tiny-Toy.Q4_1.gguf", "tiny-toy-Q4_K_M", "tiny_toy.f16", "tiny-toy.IQ2_XS.gguf"]
    assert {base_name(name) for name in same} == {"tiny-toy"}
    assert base_name("qwen2.5-coder-0.5b") == "qwen2.5-coder-0.5b"


def test_a62_a64_unknown_keys_without_value_are_noted_and_real_ones_refused(tmp_path: Path) -> None:
    old = {"enable_lora": None, "merge_weights": False, "eva_config": None, "new": {}, "x": ""}
    lora = read_peft(toys.folder(tmp_path, **old), QWEN)
    assert "ignored enable_lora: it has no value" in lora.notes
    assert len(lora.notes) == 4  # eva_config is known
    refused(toys.folder(tmp_path, brand_new={"k": 1}), "brand_new: unknown to this version")
    refused(toys.folder(tmp_path, zero=0), "zero: unknown to this version")


def test_all_faults_come_in_one_message(tmp_path: Path) -> None:
    values = toys.tensors()
    values[toys.key(0, Q0, "A")][0, 0] = np.nan
    text = refused(toys.folder(tmp_path, values, use_dora=True, bias="all"), "DoRA", "bias", "NaN")
    assert text.count("\n- ") == 3


@pytest.mark.parametrize("alpha", [1e30, 1e6, -1e30])
def test_finite_but_absurd_scales_are_refused(tmp_path: Path, alpha: float) -> None:
    text = refused(toys.folder(tmp_path, lora_alpha=alpha), "blk.0.attn_q: changes its layer by")
    assert "the most is 2.5; trained adapters have about 0.003. Check lora_alpha and r" in text


def test_the_size_of_a_change_is_that_of_its_product() -> None:
    for seed in range(5):
        pair = toys.lora(seed, rank=seed + 1).pairs["blk.0.attn_k"]
        expected = np.sqrt((toys.delta(pair) ** 2).mean())
        assert change_rms(pair) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("factor", "fits"), [(0.99, True), (1.01, False)])
def test_a_change_is_taken_up_to_the_bound(tmp_path: Path, factor: float, fits: bool) -> None:
    pairs = read_peft(toys.folder(tmp_path / "one"), QWEN).pairs
    alpha = 8 * factor * MAX_CHANGE / max(map(change_rms, pairs.values()))
    folder = toys.folder(tmp_path / "two", lora_alpha=alpha)
    if fits:
        assert max(map(change_rms, read_peft(folder, QWEN).pairs.values())) < MAX_CHANGE
    else:
        refused(folder, "changes its layer by 2.5")


def with_extra(name: str, shape: tuple[int, ...] = (4, 4)) -> toys.Tensors:
    return toys.tensors() | {name: np.ones(shape, np.float32)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.lm_head.lora_A.weight", "the output layer"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "an embedding LoRA"),
        ("base_model.model.model.embed_tokens.weight", "the embedding, which is not adapted"),
        (toys.key(0, Q0, "B").replace(".weight", ".bias"), "is a bias"),
        (toys.key(0, Q0, "B").replace("lora_B.weight", "lora_magnitude_vector"), "DoRA magnitudes"),
        ("base_model.model.score.modules_to_save.weight", "a whole module"),
        ("base_model.model.model.norm.weight", "is not a LoRA matrix"),
        (toys.key(0, "self_attn.k_proj", "A"), "lacks its lora_B"),
        (toys.key(0, Q0, "A", ".other"), "this module has two adapters"),
    ],
)
def test_a22_every_tensor_is_used_or_refused(tmp_path: Path, name: str, message: str) -> None:
    refused(toys.folder(tmp_path, with_extra(name)), message)


def test_a01_no_module_matches_shows_both_sides(tmp_path: Path) -> None:
    values = {k.replace("model.model.layers", "model.layers"): v for k, v in toys.tensors().items()}
    refused(
        toys.folder(tmp_path, values),
        "4 of its 4 modules match nothing",
        "Its modules: layers.0.self_attn.q_proj",
        "The model's: model.layers.0.mlp.down_proj",
    )


def test_a02_modules_the_model_lacks_are_refused(tmp_path: Path) -> None:
    values = toys.tensors() | {
        k.replace("layers.1", "layers.7"): v for k, v in toys.tensors().items()
    }
    refused(toys.folder(tmp_path, values), "2 of its 6 modules", "model.layers.7.self_attn.q_proj")
    refused(toys.folder(tmp_path, {"x": np.ones(1, np.float32)}), "holds no LoRA module")


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    values = toys.tensors()
    values[toys.key(0, Q0, "A")] = np.ones((4, 60), np.float32)
    values[toys.key(1, Q0, "B")] = np.ones((64, 3), np.float32)
    values[toys.key(1, "self_attn.v_proj", "B")] = np.ones(4, np.float32)
    refused(
        toys.folder(tmp_path, values),
        r"blk.0.attn_q: changes a layer of 64 x 60 \(out x in\), the model's is 64 x 64",
        "blk.1.attn_q: A has rank 4, B has rank 3",
        "blk.1.attn_v: A and B must be matrices",
    )


def test_a13_the_rank_is_read_from_the_tensors_and_bounded(tmp_path: Path) -> None:
    values = toys.tensors(rank=1100)
    refused(toys.folder(tmp_path, values, r=1100), "rank 1100 is outside 1 to 1024")
    lora = read_peft(
        toys.folder(tmp_path, toys.tensors(rank=600), rank_pattern={"[qv]_proj": 600}), QWEN
    )
    assert lora.rank == 600


def test_a37_a_delta_of_zero_is_refused(tmp_path: Path) -> None:
    values = {k: v * ("lora_A" in k) for k, v in toys.tensors().items()}
    refused(toys.folder(tmp_path, values), "has no effect: the product of A and B is zero")
    values[toys.key(0, Q0, "B")][0, 0] = 1
    assert read_peft(toys.folder(tmp_path, values), QWEN)


def test_scaling_that_overflows_is_refused(tmp_path: Path) -> None:
    refused(toys.folder(tmp_path, lora_alpha=1e42), "NaN or infinite")


def test_architectures_without_known_names_are_refused(tmp_path: Path) -> None:
    refused(toys.folder(tmp_path), "architecture 'gpt2'.*convert_lora", model=toys.model("gpt2"))


def test_a31_several_candidates_are_refused_and_checkpoints_named(tmp_path: Path) -> None:
    folder = toys.folder(tmp_path / "a")
    (folder / "checkpoint-5").mkdir()
    (folder / "training_args.bin").write_bytes(b"never opened")
    assert read_peft(folder, QWEN)  # the declared file is certain
    (folder / "adapter_model-step250.safetensors").write_bytes(b"")
    refused(folder, "several weight files .*step250")
    toys.folder(tmp_path / "b" / "checkpoint-5")
    refused(tmp_path / "b", "holds only checkpoints. Add one of them: checkpoint-5")


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    folder = toys.folder(tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(folder, "pickled weights .adapter_model.bin.*safe_serialization=True")


def test_a40_missing_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    refused(tmp_path, "no adapter_model.safetensors; found: notes.txt", "no adapter_config.json")
    refused(tmp_path / "C:\\adapters\\x", "is no folder; expected one with adapter_config.json")


def test_damaged_configs(tmp_path: Path) -> None:
    folder = toys.folder(tmp_path)
    config = folder / "adapter_config.json"
    config.write_text("{")
    refused(folder, "is not JSON")
    config.write_text("[" * 100_000)
    refused(folder, "is not JSON")
    config.write_text("[1]")
    refused(folder, "is not a JSON object")
    config.write_text(" " * (1 << 20) + "{}")
    refused(folder, "larger than 1048576 bytes")
    config.unlink()
    config.mkdir()
    with pytest.raises(BadAdapter, match=r"cannot read .*adapter_config.json"):
        read_config(config)


def test_safetensors_equal_the_library_and_bf16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = {
        "a": np.arange(6, dtype=np.float16).reshape(2, 3),
        "b": np.ones(3),
        "c": np.float32([7]),
    }
    save_file(values, path, metadata={"format": "pt"})
    found = parse_safetensors(path.read_bytes(), source="x")
    assert found.keys() == values.keys()
    for name, value in load_file(path).items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value)
    entry = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    np.testing.assert_array_equal(packed(entry, bytes.fromhex("803f00c0"))["w"], [1, -2])


def packed(header: Any, body: bytes = b"", raw: bytes | None = None) -> dict[str, Any]:
    data = json.dumps(header).encode() if raw is None else raw
    return parse_safetensors(len(data).to_bytes(8, "little") + data + body, source="x")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}, "as I8; save it as one of F64"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "tensor 'w' is not whole"),
        ({"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}, "tensor 'w' is not whole"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "tensor 'w' is not whole"),
        ({"dtype": "F32", "shape": 1}, "describes tensor 'w' wrongly"),
        ("x", "describes tensor 'w' wrongly"),
    ],
)
def test_damaged_safetensors_entries(entry: Any, message: str) -> None:
    with pytest.raises(BadAdapter, match=message):
        packed({"w": entry}, bytes(4))


def test_damaged_safetensors_files() -> None:
    for data in (b"", b"1234567", (1 << 40).to_bytes(8, "little"), b"\x09" + bytes(7) + b"{}"):
        with pytest.raises(BadAdapter, match="truncated or not a safetensors file"):
            parse_safetensors(data, source="x")
    with pytest.raises(BadAdapter, match="header that is not JSON"):
        packed(None, raw=b"{")
    with pytest.raises(BadAdapter, match="header that is not an object"):
        packed([1])


def test_names_go_both_ways() -> None:
    for name in toys.model().linears:
        assert names.gguf_name(names.hf_path(name)) == name
    assert names.hf_path("output") == "output"
    for path in (
        "model.layers.01.self_attn.q_proj",
        "model.layers.0.self_attn",
        "layers.0.mlp.up_proj",
    ):
        assert names.gguf_name(path) is None
