"""A toy model of two layers, width 64, and PEFT folders for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from floe.adapters.lora import LoraPair, LoraTensors
from floe.core.model import ModelInfo

WIDTH, KV, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 32, 96, 2, 4, 2, 97
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KV, WIDTH),
    "self_attn.v_proj": (KV, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (FFN, WIDTH),
    "mlp.up_proj": (FFN, WIDTH),
    "mlp.down_proj": (WIDTH, FFN),
}
GGUF = dict(
    zip(
        SHAPES,
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        strict=True,
    )
)
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "Toys/Tiny-Toy",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
}
Tensors = dict[str, NDArray[np.float32]]


def model(architecture: str = "llama", **changes: Any) -> ModelInfo:
    linears = {f"blk.{i}.{GGUF[hf]}": shape for i in range(LAYERS) for hf, shape in SHAPES.items()}
    fields: dict[str, Any] = {
        "name": "tiny-toy",
        "digest": "0" * 64,
        "architecture": architecture,
        "n_layers": LAYERS,
        "width": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "n_vocab": VOCAB,
        "context_tokens": 128,
        "eos_ids": frozenset({0}),
        "tokenizer_digest": "t",
        "chat_template": None,
        "names": frozenset({"tiny-toy"}),
        "linears": linears,
    }
    return ModelInfo(**{**fields, **changes})


def key(layer: int, module: str, side: str, infix: str = "") -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{side}{infix}.weight"


def tensors(
    seed: int = 0,
    rank: int = 4,
    modules: tuple[str, ...] = ("self_attn.q_proj", "self_attn.v_proj"),
) -> Tensors:
    rng = np.random.default_rng(seed)
    out: Tensors = {}
    for layer in range(LAYERS):
        for module in modules:
            o, i = SHAPES[module]
            out[key(layer, module, "A")] = rng.normal(0, 0.1, (rank, i)).astype(np.float32)
            out[key(layer, module, "B")] = rng.normal(0, 0.1, (o, rank)).astype(np.float32)
    return out


def folder(
    path: Path, values: Mapping[str, Any] | None = None, *, seed: int = 0, **config: Any
) -> Path:
    """A PEFT folder; `config` changes CONFIG, None in it stays null."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(dict(tensors(seed) if values is None else values), path / "adapter_model.safetensors")
    return path


def lora(seed: int = 0, rank: int = 3, names: tuple[str, ...] | None = None) -> LoraTensors:
    rng = np.random.default_rng(seed)
    info = model()
    pairs = {
        name: LoraPair(
            a_RI=rng.normal(0, 0.1, (rank, info.linears[name][1])).astype(np.float32),
            b_OR=rng.normal(0, 0.1, (info.linears[name][0], rank)).astype(np.float32),
        )
        for name in (names or tuple(info.linears))
    }
    return LoraTensors(architecture="llama", pairs=pairs)


def delta(pair: LoraPair) -> NDArray[np.float64]:
    return pair.b_OR.astype(np.float64) @ pair.a_RI.astype(np.float64)
