"""Headers that llama.cpp aborts on or gets silently wrong are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tailoring_cuts import cut_of

from floe.core import gguf
from floe.core.errors import BadModel
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.plan import ModelShape
from floe.tailoring.tensors import cut_tensors, from_gguf
from floe.tailoring.validate import LayerSizes, validate_gguf
from floe.testing.tiny_layers import TinyLayers

Tensors = dict[str, NDArray[Any]]
Change = Callable[[dict[str, Any], Tensors], object]


@pytest.fixture(scope="module")
def pruned(
    shape: ModelShape, layered: TinyLayers, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    cut = cut_of(shape, (2, 2, 96), (1, 2, 32), (0, 1, 64), (2, 1, 96))
    target = tmp_path_factory.mktemp("valid") / "small.gguf"
    tensors = cut_tensors(from_gguf(layered.gguf), cut)
    return export_gguf(tensors, target, metadata_from=layered.gguf).path


def rewritten(path: Path, target: Path, change: Change) -> Path:
    header, read = gguf.read_header(path), from_gguf(path)
    metadata: dict[str, Any] = dict(gguf.raw_values(path, header))
    tensors: Tensors = {name: read.load(name) for name in header.tensors}
    change(metadata, tensors)
    gguf.write(target, metadata, tensors)
    return target


def sizes(**values: Any) -> Change:
    """Metadata of deci by its short key, with "__" for ".", None to leave it out."""

    def change(metadata: dict[str, Any], _: Tensors) -> None:
        for key, value in values.items():
            name = "deci." + key.replace("__", ".")
            if value is None:
                metadata.pop(name)
            else:
                metadata[name] = value

    return change


def tensors(**values: Any) -> Change:
    """Tensors by name with "__" for ".": an array, or None to leave it out."""

    def change(_: dict[str, Any], found: Tensors) -> None:
        for key, value in values.items():
            name = key.replace("__", ".")
            if value is None:
                found.pop(name)
            else:
                found[name] = np.zeros(value, np.float32)

    return change


def entry(key: str, value: Any) -> Change:
    return lambda metadata, _: metadata.__setitem__(key, value)


REFUSED: Mapping[str, tuple[Change, str]] = {
    "q not a multiple of kv aborts": (
        sizes(attention__head_count=[4, 3, 0, 2], attention__head_count_kv=[2, 2, 0, 2]),
        r"layer 1: 3 query heads do not divide over 2 KV heads; llama\.cpp would end the process",
    ),
    "kv heads without q heads": (
        sizes(attention__head_count=[4, 2, 0, 2], attention__head_count_kv=[2, 1, 1, 2]),
        "layer 2: 0 query heads do not divide over 1 KV heads",
    ),
    "no ffn with attention is silently wrong": (
        sizes(feed_forward_length=[96, 0, 64, 96]),
        "layer 1: attention without FFN; llama.cpp would skip the attention too",
    ),
    "layer 0 without attention": (
        sizes(attention__head_count=[0, 2, 0, 2], attention__head_count_kv=[0, 1, 0, 2]),
        "layer 0 has no attention, from which llama.cpp takes the head width",
    ),
    "an empty last layer aborts": (
        sizes(
            attention__head_count=[4, 2, 0, 0],
            attention__head_count_kv=[2, 1, 0, 0],
            feed_forward_length=[96, 32, 64, 0],
        ),
        "the last layer is empty; llama.cpp would end the process. Drop it instead",
    ),
    "too few sizes": (sizes(feed_forward_length=[96, 32]), "has 2 values of deci.feed_forward"),
    "a negative size": (sizes(feed_forward_length=[96, -32, 64, 96]), "whole numbers, 0 or more"),
    "a size missing": (sizes(feed_forward_length=None), "has deci.feed_forward_length None"),
    "no layers": (sizes(block_count=0), "has deci.block_count 0; it must be a number above 0"),
    "too many layers": (sizes(block_count=600), "claims 600 layers; more than 512 cannot be"),
    "an odd head": (
        sizes(attention__key_length=15, attention__value_length=15),
        "has heads of width 15; rotary positions need an even one",
    ),
    "keys and values differ": (
        sizes(attention__value_length=8), "has keys of width 16 and values of width 8"
    ),
    "half a rotation": (sizes(rope__dimension_count=8), "rotates 8 values of heads of width 16"),
    "a tensor is missing": (
        tensors(blk__1__ffn_up__weight=None), r"lacks the tensor blk\.1\.ffn_up\.weight"
    ),
    "a tensor has another shape": (
        tensors(blk__1__ffn_up__weight=(64, 64)),
        r"has blk\.1\.ffn_up\.weight of shape \(64, 64\), its sizes say \(32, 64\)",
    ),
    "a tensor that no layer uses": (
        tensors(blk__2__attn_q__weight=(16, 64)), r"holds blk\.2\.attn_q\.weight \(16, 64\), which"
    ),
    "a bias of another width": (
        tensors(blk__1__ffn_down__bias=(32,)), r"holds blk\.1\.ffn_down\.bias \(32,\), which no"
    ),
    "a layer too many": (tensors(blk__4__ffn_norm__weight=(64,)), r"holds blk\.4\.ffn_norm"),
    "no embeddings": (tensors(token_embd__weight=None), r"has no token_embd\.weight of width 64"),
    "a head of another size": (tensors(output__weight=(7, 64)), r"has output\.weight of shape"),
    "no tokens": (
        lambda metadata, _: metadata.pop("tokenizer.ggml.tokens"), "has no tokens; export it again"
    ),
    "tokens of another model": (
        entry("tokenizer.ggml.tokens", ["a", "b"]), "has 2 tokens for 273 rows of embeddings"
    ),
    "an architecture unknown": (
        entry("general.architecture", "rwkv"), "has architecture 'rwkv'; llama, qwen2, qwen3"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str, pruned: Path, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    with pytest.raises(BadModel, match=message):
        validate_gguf(rewritten(pruned, tmp_path / "bad.gguf", change))


def test_sizes_by_layer_in_an_architecture_that_builds_only_the_first(
    layered: TinyLayers, tmp_path: Path
) -> None:
    change = entry("llama.feed_forward_length", [96, 64, 96, 96])
    with pytest.raises(BadModel, match="builds only for deci; export it again"):
        validate_gguf(rewritten(layered.gguf, tmp_path / "bad.gguf", change))


def test_d17_facts_of_a_valid_file(pruned: Path) -> None:
    facts = validate_gguf(pruned)
    assert facts.architecture == "deci"
    assert facts.layers[1] == LayerSizes(n_heads=2, n_kv_heads=1, n_ffn=32)
    assert facts.kv_values == (64, 32, 0, 64)
    assert (facts.width, facts.head_width, facts.n_vocab) == (64, 16, 273)
    assert facts.tied_embeddings
    header = gguf.read_header(pruned)
    assert facts.weight_bytes == sum(4 * np.prod(i.shape) for i in header.tensors.values())


def test_whole_models_are_valid(
    layered: TinyLayers, with_biases: TinyLayers, slm_gguf: Path, cloud_gguf: Path
) -> None:
    assert validate_gguf(layered.gguf).architecture == "llama"
    assert validate_gguf(with_biases.gguf).architecture == "qwen2"
    assert len(validate_gguf(slm_gguf).layers) == 30
    assert validate_gguf(cloud_gguf).kv_values == (256,) * 24


def test_a_qwen3_has_norms_of_queries_and_keys(layered: TinyLayers, tmp_path: Path) -> None:
    def to_qwen3(metadata: dict[str, Any], found: Tensors) -> None:
        for key in [key for key in metadata if key.startswith("llama.")]:
            metadata[key.replace("llama.", "qwen3.")] = metadata.pop(key)
        metadata["general.architecture"] = "qwen3"
        for i in range(4):
            for name in ("q", "k"):
                found[f"blk.{i}.attn_{name}_norm.weight"] = np.ones(16, np.float32)

    path = rewritten(layered.gguf, tmp_path / "good.gguf", to_qwen3)
    assert validate_gguf(path).architecture == "qwen3"
    bad = rewritten(path, tmp_path / "bad.gguf", tensors(blk__3__attn_k_norm__weight=None))
    with pytest.raises(BadModel, match=r"lacks the tensor blk\.3\.attn_k_norm\.weight"):
        validate_gguf(bad)


def test_rows_that_blocks_do_not_fill_are_refused(pruned: Path, tmp_path: Path) -> None:
    """A quantized tensor whose rows are no multiple of 32 cannot be laid out at all."""
    data = bytearray(pruned.read_bytes())
    name = b"blk.2.ffn_down.weight"
    at = data.index(name) + len(name) + 4
    data[at : at + 8] = (33).to_bytes(8, "little")  # values in a row
    data[at + 16 : at + 20] = gguf.Q8_0.to_bytes(4, "little")
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(BadModel, match="rows of 33 values do not divide into blocks of 32"):
        validate_gguf(tmp_path / "bad.gguf")
