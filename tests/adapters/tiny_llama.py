"""A two-layer llama GGUF with the head of SmolLM2's vocabulary, from chosen weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
from numpy.typing import NDArray

from floe.adapters.names import gguf_name
from floe.core import gguf
from floe.core.layer_names import interleave
from floe.engine.llamacpp import LlamaCppEngine

VOCAB = 600
HEAD = toys.WIDTH // toys.HEADS
_OTHER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **{f"model.layers.{i}.input_layernorm.weight": f"blk.{i}.attn_norm.weight" for i in range(9)},
    **{
        f"model.layers.{i}.post_attention_layernorm.weight": f"blk.{i}.ffn_norm.weight"
        for i in range(9)
    },
}
Weights = Mapping[str, NDArray[np.float32]]


def random_weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Under Hugging Face's names, as a tiny LlamaForCausalLM would have them."""
    rng = np.random.default_rng(seed)
    out = {"model.norm.weight": np.ones(toys.WIDTH, np.float32)}
    out["model.embed_tokens.weight"] = rng.normal(0, 1, (VOCAB, toys.WIDTH)).astype(np.float32)
    out["lm_head.weight"] = rng.normal(0, 0.3, (VOCAB, toys.WIDTH)).astype(np.float32)
    for i in range(toys.LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"model.layers.{i}.{norm}.weight"] = np.ones(toys.WIDTH, np.float32)
        for module, shape in toys.SHAPES.items():
            value = rng.normal(0, 0.2, shape).astype(np.float32)
            out[f"model.layers.{i}.{module}.weight"] = value
    return out


def write(path: Path, slm_gguf: Path, weights: Weights) -> Path:
    """The weights as a llama GGUF in F32."""
    source = gguf.raw_values(slm_gguf, gguf.read_header(slm_gguf))
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": toys.LAYERS,
        "llama.context_length": 256,
        "llama.embedding_length": toys.WIDTH,
        "llama.feed_forward_length": toys.FFN,
        "llama.attention.head_count": toys.HEADS,
        "llama.attention.head_count_kv": toys.KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": HEAD,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": VOCAB,
        "general.file_type": 0,
    }
    metadata |= {k: v for k, v in source.items() if k.startswith("tokenizer.")}
    metadata |= _short_vocabulary(slm_gguf)
    tensors = {}
    for name, value in weights.items():
        module = gguf_name(name.removesuffix(".weight"))
        if module and module.endswith(("attn_q", "attn_k")):
            value = interleave(value, HEAD)
        tensors[f"{module}.weight" if module else _OTHER[name]] = np.ascontiguousarray(value)
    gguf.write(path, metadata, tensors)
    return path


def _short_vocabulary(slm_gguf: Path) -> dict[str, Any]:
    lists = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    source = gguf.read_header(slm_gguf, arrays=lists).metadata
    tokens = source[lists[0]][:VOCAB]
    known = set(tokens)
    merges = [m for m in source[lists[1]] if {*m.split(" "), m.replace(" ", "")} <= known]
    types = source["tokenizer.ggml.token_type"][:VOCAB]
    return {lists[0]: tokens, lists[1]: merges, "tokenizer.ggml.token_type": types}


def quantized(source: Path, target: Path) -> Path:
    """The same model with its linear layers in Q8_0."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    header, data = gguf.read_header(source), source.read_bytes()
    tensors: dict[str, Any] = {}
    for name, info in header.tensors.items():
        tensors[name] = gguf.tensor_array(data, info)
        if name.startswith("blk.") and len(info.shape) == 2:
            raw = quantize(tensors[name], GGMLQuantizationType.Q8_0)
            tensors[name] = gguf.RawTensor(
                shape=info.shape, type=gguf.Q8_0, load=lambda raw=raw: raw
            )
    gguf.write(target, gguf.raw_values(source, header), tensors)
    return target


def run(model: Path, adapter: Path | None, prompts: Sequence[str]) -> list[NDArray[np.float32]]:
    """Log-probabilities (T, V) of each prompt."""
    engine = LlamaCppEngine(model, digest="tiny", threads=1, context_tokens=128, kv_f32=True)
    try:
        adapters = [(engine.load_adapter(adapter, key="x"), 1.0)] if adapter else []
        out = []
        for prompt in prompts:
            session = engine.session(adapters).result()
            out.append(session.feed(engine.tokenize(prompt), every=True))
            session.close()
        return out
    finally:
        engine.close()
