"""Clipping: how far one device may move the adapter, measured in product space.

The norm is that of B'A' - B0 A0, which does not depend on how the factors share their scale. What
is above it is scaled down: B0 A0 + c (B'A' - B0 A0), c = clip norm / norm.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from floe.federated.base import Aggregate
from floe.federated.products import (
    state_cut,
    state_difference,
    state_norm,
    state_scaled,
    weighted_sum,
)
from floe.federated.sampling import positive
from floe.federated.shields.release import releasable
from floe.federated.update import AdapterState, Update

_SLACK = 1e-6  # of a norm from float32 factors
_TRIES = 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Clipped:
    """`state` moved by at most the clip norm; `norm` before, `scale` of what was kept.

    `cut_error` is the relative Frobenius error of bringing it back to the rank it had; 0 where
    that was exact.
    """

    state: AdapterState
    norm: float
    scale: float
    cut_error: float = 0.0


def clip_change(start: AdapterState | None, state: AdapterState, *, clip_norm: float) -> Clipped:
    """`state`, moved from `start` by at most `clip_norm` in the norm of products.

    Exact where both have the same A (frozen) or there is no start: B is scaled. Else the sum has
    rank R + R0; it is cut to the rank it came with by singular values, and moved less where that
    cut carries it out of the ball again.
    """
    norm = state_norm(state_difference(state, start))
    if norm <= clip_norm * (1 + _SLACK):
        return Clipped(state=state, norm=norm, scale=1.0)
    scale = clip_norm / norm
    if start is None:
        return Clipped(state=state_scaled(state, scale), norm=norm, scale=scale)
    same = _same_a(start, state, scale)
    if same is not None:
        return Clipped(state=same, norm=norm, scale=scale)
    for _ in range(_TRIES):
        moved, error = state_cut(_between(start, state, scale), state.rank)
        away = state_norm(state_difference(moved, start))
        if away <= clip_norm * (1 + _SLACK):
            return Clipped(state=moved, norm=norm, scale=scale, cut_error=error)
        scale *= min(0.9, clip_norm / away)
    return Clipped(state=start, norm=norm, scale=0.0)


def _between(start: AdapterState, state: AdapterState, share: float) -> AdapterState:
    """start + share (state - start), exactly, at the sum of the ranks."""
    modules = {}
    for name in {**start.modules, **state.modules}:
        parts, weights = [], []
        for side, weight in ((start, 1.0 - share), (state, share)):
            if name in side.modules:
                parts.append(side.modules[name])
                weights.append(weight)
        modules[name] = weighted_sum(parts, weights)
    return AdapterState(base_digest=state.base_digest, modules=modules)


def _same_a(start: AdapterState, state: AdapterState, scale: float) -> AdapterState | None:
    """The same for adapters over one A, or with one rows of the other: no rank is added."""
    modules = {}
    if set(start.modules) != set(state.modules):
        return None
    for name, mine in state.modules.items():
        other = start.modules[name]
        if other.rank != mine.rank or not (other.a_RI == mine.a_RI).all():
            return None
        b_OR = other.b_OR + (mine.b_OR - other.b_OR) * type(mine.b_OR.flat[0])(scale)
        modules[name] = replace(mine, b_OR=b_OR)
    return AdapterState(base_digest=state.base_digest, modules=modules)


class Clip:
    """Bounds each device's influence. No promise of privacy by itself: it notes norms."""

    name = "clip"

    def __init__(self, *, clip_norm: float) -> None:
        """Raises BadConfig for a norm that is not finite and above 0 (C11)."""
        self.clip_norm = positive(clip_norm, what="clip norm", param="clip_norm")

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update within the ball; metrics say the norm before, the scale and the cut's error.

        Raises:
            BadUpdate: an array that may not be released.
        """
        del seed
        done = clip_change(start, releasable(update.state), clip_norm=self.clip_norm)
        notes = {
            "clipped": float(done.scale < 1.0),
            "norm_before": done.norm,
            "clip_scale": done.scale,
            "clip_cut_error": done.cut_error,
        }
        return replace(update, state=done.state, metrics={**update.metrics, **notes})

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The total as it is."""
        del updates, seed
        return total
