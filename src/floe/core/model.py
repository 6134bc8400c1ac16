"""What is known of a loaded model without touching its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model's identity and shape.

    `linears` maps a GGUF module name ("blk.0.attn_q") to its (out, in) shape. `n_vocab` counts
    the tokenizer's real ids; padded rows are not among them (bug-log B37, B38). `names` are the
    names under which adapters may declare this base, lower case. A session holds at most
    `context_tokens`.
    """

    name: str
    digest: str
    architecture: str
    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    n_vocab: int
    context_tokens: int
    eos_ids: frozenset[int]
    tokenizer_digest: str
    chat_template: str | None
    names: frozenset[str] = frozenset()
    linears: Mapping[str, tuple[int, int]] = field(default_factory=dict)
