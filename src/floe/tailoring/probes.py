"""Models of random weights in the shape of a plan, to be timed: what costs time is the shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core import gguf
from floe.tailoring.gguf_quant import TYPE_IDS, Bytes, quantize
from floe.tailoring.memory import tensor_shapes, tensor_type
from floe.tailoring.plan import LayerPlan, ModelShape

ARCHITECTURE = "deci"
_PATTERN_ROWS = 32
_SPECIALS = ("<|endoftext|>", "<|end|>")


def write_probe(
    path: Path,
    shape: ModelShape,
    layers: Sequence[LayerPlan],
    quants: Mapping[str, str],
    *,
    context_tokens: int,
    base: Path | None = None,
) -> ModelShape:
    """Write a model with these layers (as built), and return the shape it has.

    With `base` it has that file's tokenizer, and the shape's vocabulary; without, one token per
    byte, so that the layers alone cost time.

    Raises:
        BadModel: the base cannot be read.
    """
    metadata = _metadata(shape, layers, context_tokens)
    if base is None:
        tokens = [*_SPECIALS, *_byte_alphabet()]
        shape = ModelShape(**{**shape.__dict__, "n_vocab": len(tokens)})
        metadata |= _byte_tokenizer(tokens)
    else:
        values = gguf.raw_values(base, gguf.read_header(base))
        metadata |= {key: v for key, v in values.items() if key.startswith("tokenizer.")}
    metadata[f"{ARCHITECTURE}.vocab_size"] = shape.n_vocab
    tensors: dict[str, NDArray[Any] | gguf.RawTensor] = {}
    for name, dims in tensor_shapes(shape, layers).items():
        if len(dims) == 1:
            tensors[name] = np.ones(dims, np.float32)
            continue
        quant = tensor_type(name, dims, quants)
        tensors[name] = gguf.RawTensor(
            shape=dims, type=TYPE_IDS[quant], load=partial(_rows, quant, dims[0], dims[1])
        )
    gguf.write(path, metadata, tensors)
    return shape


def _metadata(
    shape: ModelShape, layers: Sequence[LayerPlan], context_tokens: int
) -> dict[str, Any]:
    prefix = f"{ARCHITECTURE}."
    heads = [layer.n_kv_heads * layer.q_per_kv for layer in layers]
    return {
        "general.architecture": ARCHITECTURE,
        "general.type": "model",
        "general.name": "probe",
        "general.quantization_version": 2,
        prefix + "block_count": len(layers),
        prefix + "context_length": context_tokens,
        prefix + "embedding_length": shape.width,
        prefix + "feed_forward_length": [layer.n_ffn for layer in layers],
        prefix + "attention.head_count": heads,
        prefix + "attention.head_count_kv": [layer.n_kv_heads for layer in layers],
        prefix + "attention.key_length": shape.head_width,
        prefix + "attention.value_length": shape.head_width,
        prefix + "rope.dimension_count": shape.head_width,
        prefix + "attention.layer_norm_rms_epsilon": 1e-5,
        prefix + "rope.freq_base": 10000.0,
    }


def _byte_tokenizer(tokens: list[str]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(_SPECIALS) + [1] * (len(tokens) - len(_SPECIALS)),
        "tokenizer.ggml.merges": [f"{tokens[2]} {tokens[3]}"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def _rows(quant: str, n_rows: int, n_inputs: int) -> Bytes:
    """A few random rows over and over: numbers as a model has them, made in no time."""
    pattern = _pattern(quant, n_inputs)
    return np.resize(pattern.reshape(_PATTERN_ROWS, -1), (n_rows, pattern.size // _PATTERN_ROWS))


@lru_cache(maxsize=512)
def _pattern(quant: str, n_inputs: int) -> Bytes:
    rng = np.random.default_rng(n_inputs)
    drawn = rng.normal(0.0, n_inputs**-0.5, (_PATTERN_ROWS, n_inputs)).astype(np.float32)
    if quant == "F32":
        return drawn.view(np.uint8).reshape(-1)
    return quantize(drawn, quant)
