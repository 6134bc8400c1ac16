"""A random Llama- or Qwen2-like model of several layers with grouped queries, for tailoring.

Weights have the scale at which every head and channel matters, norms are not all ones, so that a
norm left out shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from floe.core import gguf
from floe.testing.tiny_model import TEMPLATE, make_tiny_model

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Sizes; `biases` makes a Qwen2-like model (biases of q, k, v) instead of a Llama-like one."""

    n_layers: int = 4
    width: int = 64
    n_kv_heads: int = 2
    q_per_kv: int = 2
    head_width: int = 16
    n_ffn: int = 96
    is_tied: bool = False
    biases: bool = False
    padded_rows: int = 0

    @property
    def family(self) -> str:
        """The model_type of Hugging Face and the architecture of GGUF."""
        return "qwen2" if self.biases else "llama"

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.n_kv_heads * self.q_per_kv


@dataclass(frozen=True, kw_only=True)
class TinyLayers:
    """The same weights twice: `gguf` for llama.cpp, `folder` for transformers."""

    gguf: Path
    folder: Path
    shape: TinyShape
    n_vocab: int


def make_tiny_layers(folder: Path, shape: TinyShape, *, seed: int = 0) -> TinyLayers:
    """Write the model into `folder`; tokenizer and chat template are the tiny model's."""
    plain = make_tiny_model(folder / "plain", seed=seed, padded_rows=shape.padded_rows)
    rows = plain.n_vocab + shape.padded_rows
    weights = _draw(shape, rows, np.random.default_rng(seed))
    hf = folder / "hf"
    hf.mkdir()
    for path in plain.folder.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            (hf / path.name).write_bytes(path.read_bytes())
    (hf / "config.json").write_text(json.dumps(_config(shape, rows), indent=1))
    save_file(weights, hf / "model.safetensors", metadata={"format": "pt"})
    header = gguf.read_header(plain.gguf)
    metadata: dict[str, Any] = {
        key: value
        for key, value in gguf.raw_values(plain.gguf, header).items()
        if not key.startswith("llama.")
    }
    metadata |= _gguf_sizes(shape, rows)
    path = folder / f"tiny-{shape.family}.gguf"
    gguf.write(path, metadata, _gguf_tensors(weights, shape))
    return TinyLayers(gguf=path, folder=hf, shape=shape, n_vocab=plain.n_vocab)


def linears_of(shape: TinyShape) -> dict[str, tuple[str, int, int]]:
    """GGUF's name, outputs and inputs of a layer's projections by Hugging Face's name."""
    q, kv = shape.n_heads * shape.head_width, shape.n_kv_heads * shape.head_width
    return {
        "self_attn.q_proj": ("attn_q", q, shape.width),
        "self_attn.k_proj": ("attn_k", kv, shape.width),
        "self_attn.v_proj": ("attn_v", kv, shape.width),
        "self_attn.o_proj": ("attn_output", shape.width, q),
        "mlp.gate_proj": ("ffn_gate", shape.n_ffn, shape.width),
        "mlp.up_proj": ("ffn_up", shape.n_ffn, shape.width),
        "mlp.down_proj": ("ffn_down", shape.width, shape.n_ffn),
    }


def _draw(shape: TinyShape, rows: int, rng: np.random.Generator) -> Weights:
    drawn: dict[str, NDArray[Any]] = {
        "model.embed_tokens.weight": rng.normal(0, 1.0, (rows, shape.width)),
        "model.norm.weight": rng.uniform(0.8, 1.2, shape.width),
    }
    if not shape.is_tied:
        drawn["lm_head.weight"] = rng.normal(0, 0.3, (rows, shape.width))
    for i in range(shape.n_layers):
        prefix = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            drawn[f"{prefix}{norm}.weight"] = rng.uniform(0.8, 1.2, shape.width)
        for module, (_, n_out, n_in) in linears_of(shape).items():
            drawn[f"{prefix}{module}.weight"] = rng.normal(0, n_in**-0.5, (n_out, n_in))
            if shape.biases and module.endswith(("q_proj", "k_proj", "v_proj")):
                drawn[f"{prefix}{module}.bias"] = rng.normal(0, 0.5, n_out)
    return {name: np.ascontiguousarray(w, np.float32) for name, w in drawn.items()}


def _config(shape: TinyShape, rows: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM" if shape.biases else "LlamaForCausalLM"],
        "model_type": shape.family,
        "hidden_size": shape.width,
        "intermediate_size": shape.n_ffn,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_width,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": rows,
        "tie_word_embeddings": shape.is_tied,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _gguf_sizes(shape: TinyShape, rows: int) -> dict[str, Any]:
    sizes = {
        "block_count": shape.n_layers,
        "context_length": 512,
        "embedding_length": shape.width,
        "feed_forward_length": shape.n_ffn,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": rows,
    }
    own = {f"{shape.family}.{key}": value for key, value in sizes.items()}
    return {
        "general.architecture": shape.family,
        "general.type": "model",
        "general.name": "tiny-layers",
        "tokenizer.chat_template": TEMPLATE,
        **own,
    }


def _gguf_tensors(weights: Weights, shape: TinyShape) -> Weights:
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}  # noqa: E501  # fmt: skip
    out = {new: weights[old] for old, new in names.items() if old in weights}
    for i in range(shape.n_layers):
        prefix, block = f"model.layers.{i}.", f"blk.{i}."
        out[block + "attn_norm.weight"] = weights[prefix + "input_layernorm.weight"]
        out[block + "ffn_norm.weight"] = weights[prefix + "post_attention_layernorm.weight"]
        for module, (name, _, _) in linears_of(shape).items():
            for part in ("weight", "bias"):
                weight = weights.get(f"{prefix}{module}.{part}")
                if weight is None:
                    continue
                if shape.family == "llama" and name in ("attn_q", "attn_k"):
                    weight = _interleave(weight, shape.head_width)
                out[f"{block}{name}.{part}"] = weight
    return out


def _interleave(weight: NDArray[np.float32], head_width: int) -> NDArray[np.float32]:
    halves = weight.reshape(-1, 2, head_width // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
