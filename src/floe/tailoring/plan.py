"""What to build: for each layer of the original how much stays, for each tensor group its bits.

A plan says how many; which heads and channels stay is decided by an importance and written down in
a `Cut`, the index map that adapters are carried over with (bug-log D11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QUANTS = ("F32", "F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
GROUPS = ("embedding", "attention", "ffn", "output")
"""Tensor groups that get a quantization type of their own."""
COMPENSATED = frozenset({"flap"})
"""Criteria whose plans get biases for what was removed."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The original: what a plan cuts from. `q_per_kv` query heads share one KV head (GQA)."""

    base_digest: str
    n_layers: int
    width: int
    n_kv_heads: int
    q_per_kv: int
    head_width: int
    n_ffn: int
    n_vocab: int
    tied_embeddings: bool = True


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What stays of one layer: whole KV groups, the query heads of each, FFN channels.

    `n_kv_heads` 0 = no attention, `n_ffn` 0 = no FFN, both 0 = the layer is dropped.
    """

    n_kv_heads: int
    q_per_kv: int
    n_ffn: int

    @property
    def dropped(self) -> bool:
        """Whether nothing of the layer stays."""
        return self.n_kv_heads == 0 and self.n_ffn == 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A model to build from the base with this digest; `layers[i]` is the original's layer i."""

    base_digest: str
    layers: tuple[LayerPlan, ...]
    quants: Mapping[str, str] = field(default_factory=dict)
    importance: str = "taylor"
    made_by: str = ""


@dataclass(frozen=True, kw_only=True)
class LayerCut:
    """The indices that stay of one layer, in the original's numbering, ascending.

    `q_heads` are grouped by KV head, `len(q_heads) / len(kv_heads)` each.
    """

    layer: int
    kv_heads: tuple[int, ...]
    q_heads: tuple[int, ...]
    ffn: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A plan carried out: the layers that stay, in order; new layer n is old layer `[n].layer`."""

    base_digest: str
    layers: tuple[LayerCut, ...]
    head_width: int
