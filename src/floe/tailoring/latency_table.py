"""The latency table: what each part of a model costs on the device, and what a plan sums up to.

Costs are increments that are never negative, so a wider layer never looks cheaper: of an FFN from
one measured width to the next, of attention from one number of KV heads and of query heads per KV
head to the next, per quantization type; of the head per type; of cached tokens; and a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadPlan
from floe.tailoring.base import Cost
from floe.tailoring.leastsq import robust_fit
from floe.tailoring.memory import Room, built_layers, memory_of
from floe.tailoring.plan import LayerPlan, ModelShape, Plan

CONSTANT = "constant"
Floats = NDArray[np.float64]
_PER_TOKENS = 1000
_BELIEF = 10.0  # of equal slopes; a tenth of one is outweighed by what ten models say
_SMALL = 0.1  # errors count against the time plus this much of the largest: plans are not tiny
_LIKE_A_PLAN = 0.2  # the fit error is of models that take this much of the largest one's time


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Where a layer was measured; between the nodes costs are interpolated, linearly."""

    kv_heads: tuple[int, ...]
    q_per_kv: tuple[int, ...]
    ffn: tuple[int, ...]
    quants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One timed model: layers as built, types, vocabulary, tokens in the cache; what it took.

    `decode_ms` a token, `prefill_ms` for the whole prompt, `energy_mj` a decoded token.
    """

    layers: tuple[LayerPlan, ...]
    quants: Mapping[str, str]
    n_vocab: int
    depth_tokens: int
    decode_ms: float
    prefill_ms: float
    energy_mj: float | None = None


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Increments in milliseconds (energy: millijoules) by name, and how well they fit.

    `prefill` is for a prompt of `prompt_tokens`. `decode_mape` and `prefill_mape` are the mean
    absolute relative errors of rows the fit has not seen (leave one out), 0.03 = 3 %, over rows
    that take a fifth of the longest or more; shorter ones are smaller than any plan.
    """

    shape: ModelShape
    grid: Grid
    prompt_tokens: int
    decode: Mapping[str, float]
    prefill: Mapping[str, float]
    energy: Mapping[str, float] | None
    decode_mape: float
    prefill_mape: float

    def decode_ms(
        self, layers: Sequence[LayerPlan], quants: Mapping[str, str], *, depth_tokens: int
    ) -> float:
        """Milliseconds for one token behind `depth_tokens` cached ones; layers as built."""
        found = self._features(layers, quants, depth_tokens)
        return sum(self.decode[name] * n for name, n in found.items())

    def prefill_ms(self, layers: Sequence[LayerPlan], quants: Mapping[str, str]) -> float:
        """Milliseconds for a prompt of `prompt_tokens`; layers as built."""
        found = self._features(layers, quants, 0)
        return sum(self.prefill[name] * n for name, n in found.items())

    def energy_mj(
        self, layers: Sequence[LayerPlan], quants: Mapping[str, str], *, depth_tokens: int
    ) -> float | None:
        """Millijoules for one token; None where no meter was read."""
        if self.energy is None:
            return None
        found = self._features(layers, quants, depth_tokens)
        return sum(self.energy[name] * n for name, n in found.items())

    def _features(
        self, layers: Sequence[LayerPlan], quants: Mapping[str, str], depth_tokens: int
    ) -> dict[str, float]:
        found = features(
            self.grid, self.shape, layers, quants,
            n_vocab=self.shape.n_vocab, depth_tokens=depth_tokens,
        )  # fmt: skip
        if missing := [name for name in found if name not in self.decode]:
            raise BadPlan(
                f"the device profile has no costs of {missing[0]}: profile with its quantization "
                "type (floe tailor profile --quants ...)"
            )
        return found


def features(
    grid: Grid,
    shape: ModelShape,
    layers: Sequence[LayerPlan],
    quants: Mapping[str, str],
    *,
    n_vocab: int,
    depth_tokens: int,
) -> dict[str, float]:
    """How often each increment of the table is in a model; `quants` names every group used.

    Raises:
        BadPlan: a tensor group without a type.
    """
    out: dict[str, float] = {CONSTANT: 1.0}

    def add(name: str, n: float) -> None:
        if n:
            out[name] = out.get(name, 0.0) + n

    head = _quant(quants, "embedding" if shape.tied_embeddings else "output")
    add(f"head {head}", n_vocab / shape.n_vocab)
    attention, ffn = _quant(quants, "attention"), _quant(quants, "ffn")
    for layer in layers:
        if layer.n_kv_heads:
            kv = steps(layer.n_kv_heads, grid.kv_heads)
            for q_node, q in zip(grid.q_per_kv, steps(layer.q_per_kv, grid.q_per_kv), strict=True):
                for kv_node, share in zip(grid.kv_heads, kv, strict=True):
                    add(f"attention {attention} kv {kv_node} q {q_node}", share * q)
                    # not so much per head: caches of several heads are read in strides
                    cached = share * q * depth_tokens / _PER_TOKENS
                    add(f"cached kv {kv_node} q {q_node}", cached)
        if layer.n_ffn:
            for node, share in zip(grid.ffn, steps(layer.n_ffn, grid.ffn), strict=True):
                add(f"ffn {ffn} {node}", share)
    return out


def steps(value: float, nodes: Sequence[int]) -> list[float]:
    """The share of each increment: 1 at and below the first node, then 0 to 1 up to each next.

    Beyond the last node the last increment goes on in proportion.
    """
    out = [1.0]
    for i, (low, high) in enumerate(pairwise(nodes)):
        share = max((value - low) / (high - low), 0.0)
        out.append(share if i == len(nodes) - 2 else min(share, 1.0))
    return out


def _quant(quants: Mapping[str, str], group: str) -> str:
    if group not in quants:
        raise BadPlan(f"the plan names no quantization type for {group!r}", param="quants")
    return quants[group]


def fit_table(
    rows: Sequence[Row], *, grid: Grid, shape: ModelShape, prompt_tokens: int
) -> LatencyTable:
    """The table that explains the rows best, in relative error, outliers counting less.

    Raises:
        BadPlan: no rows, or a time that is not above 0.
    """
    if not rows or any(min(row.decode_ms, row.prefill_ms) <= 0 for row in rows):
        raise BadPlan("a latency table needs measured rows with times above 0; profile again")
    found = [
        features(grid, shape, r.layers, r.quants, n_vocab=r.n_vocab, depth_tokens=r.depth_tokens)
        for r in rows
    ]
    names = sorted({name for one in found for name in one})
    a = np.array([[one.get(name, 0.0) for name in names] for one in found])
    decode, decode_errors = _fit(a, [r.decode_ms for r in rows], names, grid)
    is_cached = np.array([name.startswith("cached") for name in names])
    prefill, prefill_errors = _fit(
        np.where(is_cached, 0.0, a), [r.prefill_ms for r in rows], names, grid
    )
    joules = [r.energy_mj for r in rows if r.energy_mj]
    energy = _fit(a, joules, names, grid)[0] if len(joules) == len(rows) else None
    return LatencyTable(
        shape=shape,
        grid=grid,
        prompt_tokens=prompt_tokens,
        decode=dict(zip(names, decode.tolist(), strict=True)),
        prefill=dict(zip(names, prefill.tolist(), strict=True)),
        energy=None if energy is None else dict(zip(names, energy.tolist(), strict=True)),
        decode_mape=mape(decode_errors),
        prefill_mape=mape(prefill_errors),
    )


def _fit(
    a_NU: Floats, values: Sequence[float], names: Sequence[str], grid: Grid
) -> tuple[Floats, list[float]]:
    """The increments, and the relative errors left out, of the rows that a plan might be like."""
    y = np.array(values, float)
    most = float(y.max())
    scale = y + _SMALL * most
    beliefs = _even_slopes(a_NU / scale[:, None], names, grid)
    found, errors = robust_fit(a_NU, y, scale_N=scale, beliefs_MU=beliefs)
    is_like_a_plan = y >= _LIKE_A_PLAN * most
    return found, (errors / y)[is_like_a_plan].tolist()


def _even_slopes(scaled_NU: Floats, names: Sequence[str], grid: Grid) -> Floats:
    """The belief that an FFN costs as much per channel everywhere, held against weak data only."""
    share = scaled_NU.mean(axis=0)
    out = []
    widths = [high - low for low, high in pairwise(grid.ffn)]
    for quant in grid.quants:
        columns = [f"ffn {quant} {node}" for node in grid.ffn[1:]]
        for i, (left, right) in enumerate(pairwise(columns)):
            if left in names and right in names:
                row = np.zeros(len(names))
                at = names.index(left), names.index(right)
                strength = _BELIEF * (share[at[0]] + share[at[1]]) / 2 * widths[i]
                row[at[0]], row[at[1]] = strength / widths[i], -strength / widths[i + 1]
                out.append(row)
    return np.array(out).reshape(-1, len(names))


def mape(errors: Sequence[float]) -> float:
    """Mean absolute relative error of those that are numbers; NaN of none."""
    known = [abs(e) for e in errors if np.isfinite(e)]
    return float(np.mean(known)) if known else float("nan")


@dataclass(frozen=True, kw_only=True)
class TableCost:
    """What a plan costs by the table. Implements base.CostModel.

    `base_quant` is the type of groups the plan does not name. `watts`: where energy was not
    metered it is modelled as `watts` times the time; None = it stays unknown.
    """

    table: LatencyTable
    room: Room
    depth_tokens: int = 64
    base_quant: str = "F16"
    watts: float | None = None

    @property
    def energy_label(self) -> str:
        """Whether energy is "measured" (by layers), "modelled" or "unknown"."""
        if self.table.energy is not None:
            return "measured"
        return "unknown" if self.watts is None else "modelled"

    def cost(self, plan: Plan) -> Cost:
        """The cost on the profiled device.

        Raises:
            BadPlan: the plan cannot be built, or has a type that was not profiled.
        """
        layers = built_layers(plan)
        groups = ("embedding", "attention", "ffn", "output")
        quants = {group: plan.quants.get(group, self.base_quant) for group in groups}
        decode_ms = self.table.decode_ms(layers, quants, depth_tokens=self.depth_tokens)
        energy = self.table.energy_mj(layers, quants, depth_tokens=self.depth_tokens)
        if energy is None and self.watts is not None:
            energy = self.watts * decode_ms
        memory = memory_of(self.table.shape, plan, self.room, base_quant=self.base_quant)
        return Cost(
            prefill_ms=self.table.prefill_ms(layers, quants),
            decode_ms=decode_ms,
            memory_bytes=memory.total_bytes,
            energy_mj=energy,
            source="table",
        )
