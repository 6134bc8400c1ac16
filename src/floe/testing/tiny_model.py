"""A random Llama of a few thousand weights: a GGUF file, its Hugging Face twin, and LoRAs for it.

Exact checks belong on it, in F32: every engine must give the same log-probabilities.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from floe.core import gguf

LAYERS, WIDTH, HEADS, KV_HEADS, FFN, CONTEXT = 2, 64, 4, 2, 128, 512
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MERGES = ("t h", "i n", "e r", "a n", "th e", "o n", "Ġ the", "Ġ a", "in g")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MODULES = {
    "self_attn.q_proj": ("attn_q", WIDTH, WIDTH),
    "self_attn.k_proj": ("attn_k", WIDTH // HEADS * KV_HEADS, WIDTH),
    "self_attn.v_proj": ("attn_v", WIDTH // HEADS * KV_HEADS, WIDTH),
    "self_attn.o_proj": ("attn_output", WIDTH, WIDTH),
    "mlp.gate_proj": ("ffn_gate", FFN, WIDTH),
    "mlp.up_proj": ("ffn_up", FFN, WIDTH),
    "mlp.down_proj": ("ffn_down", WIDTH, FFN),
}


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """Files of the same random weights: `gguf` for llama.cpp, `folder` for transformers."""

    gguf: Path
    folder: Path
    n_vocab: int
    base_name: str = "tiny-llama"


def tiny_tokens() -> list[str]:
    """Control tokens, the 256 bytes in byte-level BPE's alphabet, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*_SPECIALS, *alphabet, *(m.replace(" ", "") for m in _MERGES)]


def make_tiny_model(folder: Path, *, seed: int = 0, padded_rows: int = 0) -> TinyModel:
    """Write the model into `folder`; `padded_rows` adds untrained vocabulary rows (B37, B38)."""
    rng = np.random.default_rng(seed)
    tokens = tiny_tokens()
    rows = len(tokens) + padded_rows
    drawn: dict[str, NDArray[Any]] = {
        "model.embed_tokens.weight": rng.normal(0, 1.0, (rows, WIDTH)),
        "model.norm.weight": np.ones(WIDTH),
        "lm_head.weight": rng.normal(0, 0.3, (rows, WIDTH)),
    }
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        drawn[prefix + "input_layernorm.weight"] = np.ones(WIDTH)
        drawn[prefix + "post_attention_layernorm.weight"] = np.ones(WIDTH)
        for module, (_, n_out, n_in) in _MODULES.items():
            drawn[f"{prefix}{module}.weight"] = rng.normal(0, n_in**-0.5, (n_out, n_in))
    weights = {k: np.ascontiguousarray(v, np.float32) for k, v in drawn.items()}
    hf = folder / "hf"
    hf.mkdir(parents=True, exist_ok=True)
    save_file(weights, hf / "model.safetensors", metadata={"format": "pt"})
    _write_config(hf, rows)
    _write_tokenizer(hf, tokens)
    path = folder / "tiny-llama.gguf"
    gguf.write(path, _metadata(tokens, padded_rows), _gguf_tensors(weights))
    return TinyModel(gguf=path, folder=hf, n_vocab=len(tokens))


def make_tiny_adapter(
    folder: Path, *, seed: int, rank: int = 4, alpha: float = 8.0, **config: Any
) -> Path:
    """A PEFT folder with random weights on every projection of the tiny model."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for i in range(LAYERS):
        for module, (_, n_out, n_in) in _MODULES.items():
            prefix = f"base_model.model.model.layers.{i}.{module}"
            a, b = rng.normal(0, 0.3, (rank, n_in)), rng.normal(0, 0.3, (n_out, rank))
            tensors[f"{prefix}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = b.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny-llama",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(m.split(".")[-1] for m in _MODULES),
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def _write_config(folder: Path, rows: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "vocab_size": rows,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _write_tokenizer(folder: Path, tokens: list[str]) -> None:
    merges = [(a, b) for a, b in (m.split(" ") for m in _MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _metadata(tokens: list[str], padded_rows: int) -> dict[str, Any]:
    padding = [f"[PAD{len(tokens) + i}]" for i in range(padded_rows)]
    kinds = [3 if t in _SPECIALS else 1 for t in tokens] + [5] * padded_rows
    return {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "tiny-llama",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(tokens) + padded_rows,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *padding],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _gguf_tensors(weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for i in range(LAYERS):
        prefix, block = f"model.layers.{i}.", f"blk.{i}."
        out[block + "attn_norm.weight"] = weights[prefix + "input_layernorm.weight"]
        out[block + "ffn_norm.weight"] = weights[prefix + "post_attention_layernorm.weight"]
        for module, (name, _, _) in _MODULES.items():
            weight = weights[f"{prefix}{module}.weight"]
            if name in ("attn_q", "attn_k"):
                weight = _interleave(weight, HEADS if name == "attn_q" else KV_HEADS)
            out[f"{block}{name}.weight"] = weight
    return out


def _interleave(weight: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """Rows from half-split rope (Hugging Face) to interleaved rope (GGUF's llama)."""
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
