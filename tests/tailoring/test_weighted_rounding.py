"""Rounding weighted by inputs: what torch judges is what the file holds, and never worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tailoring_cuts import cut_of, load_here, reload_here

from floe.core.gguf import read_header
from floe.core.layer_names import interleave
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.gguf_quant import dequantize, quantize_gguf
from floe.tailoring.on_torch.blocks import layers_of
from floe.tailoring.on_torch.hf_export import export_hf
from floe.tailoring.on_torch.prune import prune_in_memory
from floe.tailoring.on_torch.rounding import rounded
from floe.tailoring.on_torch.weighted_rounding import WeightedRounding
from floe.tailoring.plan import ModelShape
from floe.tailoring.tensors import from_hf_folder
from floe.testing.tiny_layers import TinyLayers

CUT = ((1, 2, 64), (2, 1, 32), (0, 1, 96), (2, 2, 96))
QUANTS = {"attention": "Q4_0", "ffn": "Q5_1", "embedding": "Q4_1"}


def _rounding(n_rows: int) -> WeightedRounding:
    rng = np.random.default_rng(1)
    return WeightedRounding([rng.integers(3, n_rows, 16).tolist() for _ in range(6)])


def test_what_is_judged_is_what_the_file_holds(
    model: Any, shape: ModelShape, layered: TinyLayers, tmp_path: Path
) -> None:
    cut = cut_of(shape, *CUT)
    small, rounding = prune_in_memory(model, cut), _rounding(layered.n_vocab)
    export_hf(small, tmp_path / "hf", source=layered.folder, cut=cut, reload=reload_here)
    whole, target = tmp_path / "whole.gguf", tmp_path / "model.gguf"
    export_gguf(from_hf_folder(tmp_path / "hf"), whole, metadata_from=layered.gguf)
    quantize_gguf(whole, target, QUANTS, importance=rounding.by_tensor(small, tied=True))
    judged = rounding(load_here(tmp_path / "hf"), QUANTS)
    layers = layers_of(judged)
    assert judged.lm_head.weight is judged.model.embed_tokens.weight or torch.equal(
        judged.lm_head.weight, judged.model.embed_tokens.weight
    )
    for name, weight in (
        ("token_embd.weight", judged.model.embed_tokens.weight),
        ("blk.0.attn_output.weight", layers[0].self_attn.o_proj.weight),
        ("blk.1.ffn_down.weight", layers[1].mlp.down_proj.weight),
        ("blk.3.ffn_gate.weight", layers[3].mlp.gate_proj.weight),
    ):
        np.testing.assert_array_equal(_read(target, name), weight.detach().numpy())
    q = layers[3].self_attn.q_proj.weight.detach().numpy()
    np.testing.assert_array_equal(_read(target, "blk.3.attn_q.weight"), interleave(q, 16))


def test_outputs_are_nearer_than_with_plain_scales(model: Any, layered: TinyLayers) -> None:
    rounding, quants = _rounding(layered.n_vocab), {"attention": "Q4_0", "ffn": "Q4_0"}
    squares = rounding.importance(model)
    layers = [layers_of(m) for m in (model, rounding(model, quants), rounded(model, quants))]
    for i in range(4):
        for half, name in (("self_attn", "q_proj"), ("self_attn", "o_proj"), ("mlp", "up_proj")):
            exact, ours, plain = (
                getattr(getattr(some[i], half), name).weight.detach().numpy() for some in layers
            )
            weight_I = squares[f"model.layers.{i}.{half}.{name}"]
            error, plain_error = (((w - exact) ** 2 * weight_I).sum() for w in (ours, plain))
            assert error < plain_error


def test_importance_is_the_mean_square_of_inputs(model: Any, layered: TinyLayers) -> None:
    rounding = _rounding(layered.n_vocab)
    seen: list[Any] = []
    part = layers_of(model)[1].mlp.down_proj
    hook = part.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].double()))
    found = rounding.importance(model)
    hook.remove()
    inputs = torch.cat([x.reshape(-1, 96) for x in seen])
    np.testing.assert_allclose(
        found["model.layers.1.mlp.down_proj"], inputs.square().mean(0).numpy(), rtol=1e-9
    )
    assert len(found) == 4 * 7 + 1


def test_other_types_are_rounded_as_before(model: Any, layered: TinyLayers) -> None:
    quants = {"attention": "Q8_0", "ffn": "F16"}
    ours, plain = _rounding(layered.n_vocab)(model, quants), rounded(model, quants)
    for a, b in zip(layers_of(ours), layers_of(plain), strict=True):
        assert torch.equal(a.self_attn.v_proj.weight, b.self_attn.v_proj.weight)


def _read(path: Path, name: str) -> Any:
    info = read_header(path).tensors[name]
    raw = np.fromfile(path, np.uint8, count=info.n_bytes, offset=info.offset)
    return dequantize(raw, info.type, info.shape)
