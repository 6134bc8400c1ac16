"""What may be cut where: guarded layers, include and exclude patterns, least keep ratios (D14)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from floe.core.errors import BadPlan
from floe.tailoring.plan import ModelShape

_PATTERN = re.compile(r"layers\.(\*|\d+|\d+-\d+)\.(\*|attention|ffn)")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Limits on plans, kept in the plan's file.

    Patterns are `layers.WHICH.KIND`: WHICH a number, a range "4-20" or "*", KIND "attention",
    "ffn" or "*". With `include`, only what matches one is cut; what matches `exclude` is not.
    `min_keep` maps patterns to the least share that stays. The first and last `guard_first` and
    `guard_last` layers stay whole: cutting them costs most (CLONE, figure 3).
    """

    guard_first: int = 1
    guard_last: int = 1
    ffn_multiple: int = 32
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_keep: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.guard_first < 0 or self.guard_last < 0:
            raise BadPlan("rules: guard_first and guard_last are 0 or more")
        if self.ffn_multiple < 32 or self.ffn_multiple % 32:
            raise BadPlan(f"rules: ffn_multiple {self.ffn_multiple} is no multiple of 32")
        for pattern in (*self.include, *self.exclude, *self.min_keep):
            if not _PATTERN.fullmatch(pattern):
                raise BadPlan(
                    f"rules: {pattern!r} is no pattern; write e.g. layers.4-20.ffn, "
                    "layers.*.attention or layers.7.*"
                )
        for pattern, share in self.min_keep.items():
            if not 0.0 <= share <= 1.0:
                raise BadPlan(f"rules: min_keep of {pattern} is {share}; shares are 0 to 1")


@dataclass(frozen=True, kw_only=True)
class LayerBounds:
    """The least that stays of one layer, and why."""

    min_kv_heads: int
    min_q_per_kv: int
    min_ffn: int
    attention_reason: str
    ffn_reason: str


def layer_bounds(shape: ModelShape, rules: Rules, layer: int) -> LayerBounds:
    """What `rules` let go of `layer`."""
    attention, why_attention = _least(shape, rules, layer, "attention")
    ffn, why_ffn = _least(shape, rules, layer, "ffn")
    channels = _ceil(ffn * shape.n_ffn / rules.ffn_multiple) * rules.ffn_multiple
    return LayerBounds(
        min_kv_heads=_ceil(attention * shape.n_kv_heads),
        min_q_per_kv=shape.q_per_kv if attention >= 1.0 else 1,
        min_ffn=min(channels, shape.n_ffn),
        attention_reason=why_attention,
        ffn_reason=why_ffn,
    )


def matches(pattern: str, layer: int, kind: str) -> bool:
    """Whether a pattern names this half of this layer."""
    found = _PATTERN.fullmatch(pattern)
    if found is None or found[2] not in ("*", kind):
        return False
    if found[1] == "*":
        return True
    first, _, last = found[1].partition("-")
    return int(first) <= layer <= int(last or first)


def _least(shape: ModelShape, rules: Rules, layer: int, kind: str) -> tuple[float, str]:
    if layer < rules.guard_first or layer >= shape.n_layers - rules.guard_last:
        return 1.0, "the first and last layers are guarded"
    if rules.include and not any(matches(p, layer, kind) for p in rules.include):
        return 1.0, "no include pattern names it"
    for pattern in rules.exclude:
        if matches(pattern, layer, kind):
            return 1.0, f"exclude {pattern} names it"
    shares = {p: s for p, s in rules.min_keep.items() if matches(p, layer, kind)}
    if not shares:
        return 0.0, "no rule"
    pattern = max(shares, key=lambda p: shares[p])
    return shares[pattern], f"min_keep of {pattern} is {shares[pattern]:g}"


def _ceil(value: float) -> int:
    return math.ceil(value - 1e-9)  # 0.7 * 10 is 7, not 7.000000001
