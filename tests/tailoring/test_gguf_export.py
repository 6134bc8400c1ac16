"""GGUF files of cut models, really loaded by llama.cpp: D13, D17 and the table of engines.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tailoring_cuts import cut_of, cuts, load_model, plan_of_cut, reload_here

from floe.core import gguf
from floe.core.errors import BadModel, BadPlan
from floe.engine.llamacpp import LlamaCppEngine
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.gguf_names import gguf_tensor_name
from floe.tailoring.logit_check import Run, logit_check
from floe.tailoring.memory import built_layers
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.hf_export import export_hf
from floe.tailoring.on_torch.prune import compensation, mask_model, prune_in_memory
from floe.tailoring.on_torch.reload import log_probs_of
from floe.tailoring.plan import ModelShape
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tensors import Tensors, cut_tensors, from_gguf, from_hf_folder
from floe.testing.tiny_layers import TinyLayers

PROMPTS = [[5, 40, 120, 9, 77, 200, 31, 8], [250, 17]]
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


class Served:
    """A file in the serving engine, as a Run."""

    def __init__(self, path: Path) -> None:
        self.engine = LlamaCppEngine(
            path, threads=1, context_tokens=64, max_contexts=1, sessions_per_context=1, kv_f32=True
        )

    def __call__(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        session = self.engine.session(prompt=[], max_tokens=64).result(10)
        try:
            return session.feed(list(tokens), every=True)
        finally:
            session.close()


def run_of(model: Any, n_vocab: int) -> Run:
    """A torch model's log-probabilities over the real ids, as engines give them (B37, B38)."""

    def run(tokens: Sequence[int]) -> NDArray[np.float32]:
        (log_probs_TV,) = log_probs_of(model, [tokens])
        real = log_probs_TV[:, :n_vocab]
        return real - np.logaddexp.reduce(real, axis=1, keepdims=True)

    return run


def check(
    path: Path, masked: Any, base: TinyLayers, *, tolerance: float = 1e-2, new_tokens: int = 6
) -> None:
    served = Served(path)
    try:
        found = logit_check(
            run_of(masked, base.n_vocab), served, PROMPTS,
            new_tokens=new_tokens, tolerance=tolerance,
        )  # fmt: skip
    finally:
        served.engine.close()
    assert found.is_ok, found


def export(cut_one: Tensors, target: Path, base: TinyLayers, **options: Any) -> Any:
    return export_gguf(cut_one, target, metadata_from=base.gguf, **options)


@settings(max_examples=12, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_d13_any_legal_cut_is_served_as_the_masked_model(
    data: st.DataObject,
    model: Any,
    shape: ModelShape,
    layered: TinyLayers,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cut = data.draw(cuts(shape))
    extra = None
    if data.draw(st.booleans()):
        extra = compensation(model, cut, collect(model, PROMPTS, shape=shape, taylor_tokens=0))
    target = tmp_path_factory.mktemp("gguf") / "small.gguf"
    done = export(cut_tensors(from_gguf(layered.gguf), cut, compensation=extra), target, layered)
    assert done.architecture == ("llama" if len(set(done.layers)) == 1 else "deci")
    built = built_layers(plan_of_cut(cut, shape))  # what memory is counted by
    assert [(b.n_kv_heads * b.q_per_kv, b.n_kv_heads, b.n_ffn) for b in built] == [
        (s.n_heads, s.n_kv_heads, s.n_ffn) for s in done.layers
    ]
    check(target, mask_model(model, cut, compensation=extra), layered)


@settings(max_examples=6, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_d13_a_qwen2_with_biases_is_served_as_the_masked_model(
    data: st.DataObject,
    qwen_model: Any,
    qwen_shape: ModelShape,
    with_biases: TinyLayers,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cut = data.draw(cuts(qwen_shape))
    extra = None
    if data.draw(st.booleans()):
        seen = collect(qwen_model, PROMPTS, shape=qwen_shape, taylor_tokens=0)
        extra = compensation(qwen_model, cut, seen)
    target = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tensors = cut_tensors(from_gguf(with_biases.gguf), cut, compensation=extra)
    export(tensors, target, with_biases)
    check(target, mask_model(qwen_model, cut, compensation=extra), with_biases)


UNEVEN = ((0, 1, 32), (1, 2, 0), (2, 1, 64), (0, 1, 0))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_folder_and_original_file_give_the_same_tensors(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    names = {"llama": ("model", "shape", "layered"), "qwen2": ("qwen_model", "qwen_shape", "with_biases")}  # noqa: E501  # fmt: skip
    model, shape, base = (request.getfixturevalue(name) for name in names[family])
    cut = cut_of(shape, *UNEVEN)
    export_hf(
        prune_in_memory(model, cut), tmp_path / "hf", source=base.folder, cut=cut,
        reload=reload_here,
    )  # fmt: skip
    one = export(from_hf_folder(tmp_path / "hf"), tmp_path / "a.gguf", base)
    two = export(cut_tensors(from_gguf(base.gguf), cut), tmp_path / "b.gguf", base)
    assert one.digest == two.digest
    check(one.path, mask_model(model, cut), base)


def test_layers_dropped_whole_stay_a_plain_llama(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, (2, 2, 96), (0, 1, 0), (2, 2, 96), (0, 1, 0))
    done = export(cut_tensors(from_gguf(layered.gguf), cut), tmp_path / "small.gguf", layered)
    assert (done.architecture, len(done.layers)) == ("llama", 2)
    assert gguf.read_header(done.path).metadata["llama.block_count"] == 2
    check(done.path, mask_model(model, cut), layered)


def test_zeros_are_filled_in_where_llama_cpp_needs_them(
    shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    done = export(cut_tensors(from_gguf(layered.gguf), cut), tmp_path / "small.gguf", layered)
    sizes = [(s.n_heads, s.n_kv_heads, s.n_ffn) for s in done.layers]
    assert sizes == [(1, 1, 32), (2, 1, 32), (2, 2, 64)]
    read = from_gguf(done.path)
    assert not read.load("blk.0.attn_v.weight").any()
    assert not read.load("blk.1.ffn_up.weight").any()


def test_d17_the_cache_has_the_shape_of_each_layer(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    """Fed token by token, so that every step reads the cache, it equals the pass without one."""
    cut = cut_of(shape, (2, 2, 96), (1, 1, 32), (0, 1, 64), (2, 1, 96))
    done = export(cut_tensors(from_gguf(layered.gguf), cut), tmp_path / "small.gguf", layered)
    assert done.facts.kv_values == (64, 32, 0, 64)
    served = Served(done.path)
    session = served.engine.session(prompt=[], max_tokens=64).result(10)
    steps = np.stack([session.feed([token]) for token in PROMPTS[0]])
    session.close()
    served.engine.close()
    masked = run_of(mask_model(model, cut), layered.n_vocab)
    np.testing.assert_allclose(steps, masked(PROMPTS[0]), atol=1e-2)


def test_f16_halves_the_matrices_and_keeps_vectors(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    tensors = cut_tensors(from_gguf(layered.gguf), cut)
    done = export(tensors, tmp_path / "small.gguf", layered, dtype="F16")
    types = {n: i.type for n, i in gguf.read_header(done.path).tensors.items()}
    assert (types["blk.0.ffn_up.weight"], types["blk.0.ffn_norm.weight"]) == (gguf.F16, gguf.F32)
    check(done.path, mask_model(model, cut), layered, tolerance=0.2, new_tokens=0)


def test_tokenizer_padding_and_template_survive(
    shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *UNEVEN)
    done = export(cut_tensors(from_gguf(layered.gguf), cut), tmp_path / "small.gguf", layered)
    lists = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    old = gguf.read_header(layered.gguf, arrays=lists).metadata
    new = gguf.read_header(done.path, arrays=lists).metadata
    for key, value in old.items():
        if key.startswith("tokenizer.") or key == "general.name":
            assert np.array_equal(new[key], value), key
    assert new["deci.rope.freq_base"] == old["llama.rope.freq_base"]
    assert not [key for key in new if key.startswith("llama.")]
    assert done.facts.n_vocab == layered.n_vocab + 5
    assert done.facts.tied_embeddings


def test_further_metadata_is_written(
    shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    small = cut_tensors(from_gguf(layered.gguf), cut_of(shape, *UNEVEN))
    extra = {"general.name": "tiny-for-my-board", "floe.base": shape.base_digest}
    done = export(small, tmp_path / "small.gguf", layered, extra=extra)
    metadata = gguf.read_header(done.path).metadata
    assert {key: metadata[key] for key in extra} == extra


def test_d08_bfloat16_folders_are_read(
    shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    import torch

    cut = cut_of(shape, *UNEVEN)
    small = prune_in_memory(load_model(layered.folder, dtype=torch.bfloat16), cut)
    export_hf(small, tmp_path / "hf", source=layered.folder, cut=cut, reload=reload_here)
    read = from_hf_folder(tmp_path / "hf")
    wanted = small.model.layers[2].self_attn.v_proj.weight.float().numpy()
    assert np.array_equal(read.load("blk.2.attn_v.weight"), wanted)


def test_rope_factors_of_the_original_are_kept(
    shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    header = gguf.read_header(layered.gguf)
    read = from_gguf(layered.gguf)
    tensors: dict[str, Any] = {name: read.load(name) for name in header.tensors}
    tensors["rope_freqs.weight"] = np.linspace(1, 4, 8, dtype=np.float32)
    original = tmp_path / "original.gguf"
    gguf.write(original, gguf.raw_values(layered.gguf, header), tensors)
    cut = cut_of(shape, *UNEVEN)
    small = cut_tensors(from_gguf(original), cut)
    for source, name in ((small, "a"), (cut_tensors(read, cut), "b")):
        done = export_gguf(source, tmp_path / f"{name}.gguf", metadata_from=original)
        found = from_gguf(done.path).load("rope_freqs.weight")
        assert np.array_equal(found, tensors["rope_freqs.weight"])


def whole(base: TinyLayers, shape: ModelShape) -> Tensors:
    return cut_tensors(from_gguf(base.gguf), cut_of(shape, *UNEVEN))


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    shape: ModelShape, layered: TinyLayers, with_biases: TinyLayers, tmp_path: Path
) -> None:
    from dataclasses import replace

    small, target = whole(layered, shape), tmp_path / "small.gguf"
    with pytest.raises(BadPlan, match="dtype 'Q8_0' is not one of F32, F16; quantize afterwards"):
        export(small, target, layered, dtype="Q8_0")
    with pytest.raises(BadModel, match="architecture 'qwen2', the weights are of 'llama'"):
        export(small, target, with_biases)
    other = replace(small, shapes={**small.shapes, "token_embd.weight": (7, 64)})
    with pytest.raises(BadModel, match="other embeddings than the weights"):
        export(other, target, layered)
    broken = replace(small, load=lambda name: small.load(name) * np.float32(np.inf))
    with pytest.raises(BadModel, match="values that F32 cannot hold; nothing was written"):
        export(broken, target, layered)
    gone = {k: v for k, v in small.shapes.items() if k != "blk.2.attn_v.weight"}
    with pytest.raises(BadModel, match=r"lacks the tensor blk\.2\.attn_v\.weight"):
        export(replace(small, shapes=gone), target, layered)
    assert list(tmp_path.iterdir()) == []
    target.write_text("mine")
    with pytest.raises(BadPlan, match="exists; give a new file"):
        export(small, target, layered)


def test_sources_that_cannot_be_read_say_why(layered: TinyLayers, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"has no readable config\.json"):
        from_hf_folder(tmp_path)
    (tmp_path / "config.json").write_text((layered.folder / "config.json").read_text())
    with pytest.raises(BadModel, match="has no embeddings in safetensors"):
        from_hf_folder(tmp_path)

    def unknown(raw: Any, kind: int, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError(f"no type {kind}")

    read = from_gguf(layered.gguf, dequantize=unknown)
    with pytest.raises(BadModel, match=r"output_norm\.weight cannot be brought to float32"):
        read.load("output_norm.weight")


def test_logit_check_sees_other_tokens_and_values() -> None:
    table = np.log(np.random.default_rng(0).dirichlet(np.ones(6), 6)).astype(np.float32)
    reference: Run = lambda tokens: table[list(tokens)]  # noqa: E731
    assert logit_check(reference, reference, [[1, 2]]).is_ok
    shifted = logit_check(reference, lambda t: reference(t) + np.float32(0.02), [[1, 2]])
    assert (shifted.is_ok, shifted.greedy_same) == (False, 16)
    assert shifted.max_error == pytest.approx(0.02, abs=1e-4)
    other = logit_check(reference, lambda t: -reference(t), [[1], [2]], new_tokens=3, tolerance=99)
    assert (other.is_ok, other.greedy_same, other.greedy_tokens) == (False, 0, 6)
    nan = logit_check(reference, lambda t: reference(t) * np.float32(np.nan), [[1]])
    assert (nan.is_ok, nan.max_error) == (False, np.inf)
    with pytest.raises(BadModel, match="at least one prompt"):
        logit_check(reference, reference, [])
    with pytest.raises(BadModel, match="the forms give"):
        logit_check(reference, lambda t: reference(t)[:, :3], [[1]])


def test_the_real_model_cut_from_its_quantized_file(slm_gguf: Path, tmp_path: Path) -> None:
    """SmolLM2's first four layers, cut unevenly: torch against llama.cpp in F32."""
    import torch
    import transformers

    from floe.tailoring.gguf_quant import dequantize

    original = from_gguf(slm_gguf, dequantize=dequantize)
    whole = shape_of_gguf(gguf.read_header(slm_gguf), base_digest="s" * 64)
    layers = [(3, 3, 1536), (2, 2, 1088), (0, 1, 512), (1, 3, 96), *[(0, 1, 0)] * 26]
    cut = cut_of(whole, *layers)
    done = export_gguf(cut_tensors(original, cut), tmp_path / "small.gguf", metadata_from=slm_gguf)
    config = transformers.LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, head_dim=64,
    )  # fmt: skip
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config)
    state = {
        name: torch.from_numpy(halves(original, str(gguf_tensor_name(name))))
        for name in empty.state_dict()
        if name != "lm_head.weight"
    }
    model = transformers.LlamaForCausalLM._from_config(config)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.eval().requires_grad_(False)
    masked = mask_model(model, cut)
    served = Served(done.path)
    found = logit_check(
        run_of(masked, served.engine.info.n_vocab), served, PROMPTS, new_tokens=4
    )  # fmt: skip
    served.engine.close()
    assert found.is_ok, found


def halves(tensors: Tensors, name: str) -> NDArray[np.float32]:
    """A tensor with Hugging Face's row order: `interleave` undone."""
    array = tensors.load(name)
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return array
    pairs = array.reshape(-1, tensors.head_width // 2, 2, array.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(array.shape))
