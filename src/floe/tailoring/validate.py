"""A GGUF file's header judged before anything loads it: llama.cpp ends the whole process on some
faults and computes silently wrong on others (engines.md, design question b).

Numpy and the header alone. F32/F16 and quantized files, whole or pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floe.core.errors import BadModel
from floe.core.gguf import GgufHeader, read_header

ARCHITECTURES = ("llama", "qwen2", "qwen3", "deci")
PER_LAYER = ("deci",)
"""Architectures that llama.cpp builds with sizes of each layer; the others take layer 0's."""


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Query heads, KV heads and FFN channels of one layer."""

    n_heads: int
    n_kv_heads: int
    n_ffn: int


@dataclass(frozen=True, kw_only=True)
class GgufFacts:
    """What a valid file says of itself. `kv_values[i]` = K and V values a token puts into the
    cache of layer i, where layers may differ (bug-log D17); times 2 bytes in F16.
    """

    architecture: str
    layers: tuple[LayerSizes, ...]
    head_width: int
    width: int
    n_vocab: int
    tied_embeddings: bool
    kv_values: tuple[int, ...]
    weight_bytes: int


def validate_gguf(path: Path) -> GgufFacts:
    """The facts of a model file that llama.cpp loads and computes rightly.

    Raises:
        BadModel: what is wrong, in which layer, and what to do.
    """
    return validate_header(read_header(path), source=str(path))


def validate_header(header: GgufHeader, *, source: str) -> GgufFacts:
    """`validate_gguf` of a header; `source` names it in errors."""
    check = _Check(header, source)
    arch = header.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise check.bad(f"has architecture {arch!r}; {', '.join(ARCHITECTURES)} can be judged")
    width = check.number("embedding_length")
    layers = check.layers()
    for i, size in enumerate(layers):
        check.heads(i, size)
    check.ends(layers)
    head = check.head_width(layers, width)
    check.tensors(layers, width, head)
    embedding = header.tensors["token_embd.weight"].shape
    check.vocabulary(embedding[0])
    return GgufFacts(
        architecture=str(arch), layers=layers, head_width=head, width=width,
        n_vocab=embedding[0], tied_embeddings="output.weight" not in header.tensors,
        kv_values=tuple(2 * s.n_kv_heads * head for s in layers),
        weight_bytes=sum(info.n_bytes for info in header.tensors.values()),
    )  # fmt: skip


class _Check:
    """The rules, each raising BadModel with the reason."""

    def __init__(self, header: GgufHeader, source: str) -> None:
        self._header, self._source = header, source
        self._arch = str(header.metadata.get("general.architecture"))

    def bad(self, what: str) -> BadModel:
        return BadModel(f"{self._source} {what}")

    def number(self, key: str) -> int:
        value = self._header.metadata.get(f"{self._arch}.{key}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.bad(f"has {self._arch}.{key} {value!r}; it must be a number above 0")
        return value

    def layers(self) -> tuple[LayerSizes, ...]:
        n = self.number("block_count")
        if n > 512:
            raise self.bad(f"claims {n} layers; more than 512 cannot be")
        heads = self._per_layer("attention.head_count", n)
        kv = self._per_layer("attention.head_count_kv", n, default=heads)
        ffn = self._per_layer("feed_forward_length", n)
        rows = zip(heads, kv, ffn, strict=True)
        return tuple(LayerSizes(n_heads=q, n_kv_heads=k, n_ffn=f) for q, k, f in rows)

    def _per_layer(self, key: str, n: int, *, default: list[int] | None = None) -> list[int]:
        name = f"{self._arch}.{key}"
        value: Any = self._header.metadata.get(name, default)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            value = value.tolist()
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value] * n
        if not isinstance(value, list) or any(v < 0 for v in value):
            raise self.bad(f"has {name} {value!r}; it must be whole numbers, 0 or more")
        if len(value) != n:
            raise self.bad(f"has {len(value)} values of {name} for {n} layers")
        if self._arch not in PER_LAYER and len(set(value)) > 1:
            raise self.bad(
                f"gives layers different {name}, which llama.cpp reads but builds only for "
                f"{', '.join(PER_LAYER)}; export it again"
            )
        return value

    def heads(self, i: int, size: LayerSizes) -> None:
        q, kv = size.n_heads, size.n_kv_heads
        if (q == 0) != (kv == 0) or (kv and q % kv):
            raise self.bad(
                f"layer {i}: {q} query heads do not divide over {kv} KV heads; llama.cpp would "
                "end the process. Keep whole groups"
            )
        if q and not size.n_ffn:
            raise self.bad(
                f"layer {i}: attention without FFN; llama.cpp would skip the attention too. Keep "
                "a zero FFN of width 32"
            )

    def ends(self, layers: tuple[LayerSizes, ...]) -> None:
        if not layers[0].n_heads:
            raise self.bad(
                "layer 0 has no attention, from which llama.cpp takes the head width. Keep one "
                "zero KV group"
            )
        if not layers[-1].n_heads and not layers[-1].n_ffn:
            raise self.bad(
                "the last layer is empty; llama.cpp would end the process. Drop it instead"
            )

    def head_width(self, layers: tuple[LayerSizes, ...], width: int) -> int:
        given = self._header.metadata.get(f"{self._arch}.attention.key_length")
        value = self._header.metadata.get(f"{self._arch}.attention.value_length", given)
        head = given if isinstance(given, int) else width // layers[0].n_heads
        if head < 2 or head % 2:
            raise self.bad(f"has heads of width {head}; rotary positions need an even one")
        if value not in (None, head):
            raise self.bad(f"has keys of width {head} and values of width {value}")
        rope = self._header.metadata.get(f"{self._arch}.rope.dimension_count", head)
        if self._arch in ("llama", "deci") and rope != head:
            raise self.bad(f"rotates {rope} values of heads of width {head}; export it again")
        return head

    def tensors(self, layers: tuple[LayerSizes, ...], width: int, head: int) -> None:
        wanted: dict[str, tuple[int, ...]] = {"output_norm.weight": (width,)}
        for i, size in enumerate(layers):
            wanted |= {f"blk.{i}.{k}": s for k, s in _layer_shapes(size, width, head).items()}
            if self._arch == "qwen3":
                wanted |= {f"blk.{i}.attn_{k}_norm.weight": (head,) for k in "qk"}
        found = self._header.tensors
        embedding = found.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != width:
            raise self.bad(f"has no token_embd.weight of width {width}")
        if "output.weight" in found:
            wanted["output.weight"] = embedding.shape
        for name, shape in wanted.items():
            if name not in found:
                raise self.bad(f"lacks the tensor {name}; export it again")
            if found[name].shape != shape:
                raise self.bad(f"has {name} of shape {found[name].shape}, its sizes say {shape}")
        self._no_others(wanted, layers, width, head)

    def _no_others(
        self, wanted: Mapping[str, Any], layers: tuple[LayerSizes, ...], width: int, head: int
    ) -> None:
        """A tensor that no layer uses would be loaded for nothing, or is a sign of a wrong size."""
        for name, info in self._header.tensors.items():
            if not name.startswith("blk.") or name in wanted:
                continue
            layer, _, rest = name.removeprefix("blk.").partition(".")
            i = int(layer) if layer.isdigit() else -1
            biases = _bias_shapes(layers[i], width, head) if 0 <= i < len(layers) else {}
            if biases.get(rest) != info.shape:
                raise self.bad(f"holds {name} {info.shape}, which no layer of its sizes uses")

    def vocabulary(self, rows: int) -> None:
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        count = getattr(tokens, "count", None)
        count = len(tokens) if isinstance(tokens, list) else count
        if count is None:
            raise self.bad("has no tokens; export it again with its tokenizer")
        if count != rows:
            raise self.bad(f"has {count} tokens for {rows} rows of embeddings; export it again")


def _layer_shapes(size: LayerSizes, width: int, head: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    q, kv = size.n_heads * head, size.n_kv_heads * head
    if size.n_heads:
        shapes |= {"attn_norm.weight": (width,), "attn_q.weight": (q, width)}
        shapes |= {"attn_k.weight": (kv, width), "attn_v.weight": (kv, width)}
        shapes["attn_output.weight"] = (width, q)
    if size.n_ffn:
        shapes |= {"ffn_norm.weight": (width,), "ffn_down.weight": (width, size.n_ffn)}
        shapes |= {"ffn_gate.weight": (size.n_ffn, width), "ffn_up.weight": (size.n_ffn, width)}
    return shapes


def _bias_shapes(size: LayerSizes, width: int, head: int) -> dict[str, tuple[int, ...]]:
    """Biases that a layer may have."""
    return {
        name.replace(".weight", ".bias"): (shape[0],)
        for name, shape in _layer_shapes(size, width, head).items()
        if len(shape) == 2
    }
