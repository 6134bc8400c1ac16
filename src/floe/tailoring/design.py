"""Which models a profile times: few, and mixed so that the cost of each part can be told apart."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from floe.core import gguf
from floe.tailoring.gguf_quant import TYPE_IDS
from floe.tailoring.latency_table import Grid
from floe.tailoring.memory import MIN_FFN, built_layers, tensor_shapes, tensor_type
from floe.tailoring.plan import GROUPS, LayerPlan, ModelShape, Plan

_NO_ATTENTION, _DROPPED = 0.12, 0.12
_MAX_PROBE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model to time. `whole_vocab`: with the base's tokenizer, so that the head counts."""

    layers: tuple[LayerPlan, ...]
    quants: Mapping[str, str]
    whole_vocab: bool = False
    depth_tokens: int | None = None


def grid_of(shape: ModelShape, quants: Sequence[str], *, fine: bool = False) -> Grid:
    """The nodes for a model: both ends and, of FFN widths, two (`fine`: five) between."""
    parts = 6 if fine else 3
    widths = {MIN_FFN, *(_even(shape.n_ffn * i / parts) for i in range(1, parts)), shape.n_ffn}
    middle = {(1 + shape.n_kv_heads) // 2} if fine else set()
    return Grid(
        kv_heads=tuple(sorted({1, shape.n_kv_heads} | middle)),
        q_per_kv=tuple(sorted({1, shape.q_per_kv})),
        ffn=tuple(sorted(widths)),
        quants=tuple(quants),
    )


def _even(width: float) -> int:
    return max(MIN_FFN, round(width / 32) * 32)


def design(
    shape: ModelShape, grid: Grid, *, rows_per_quant: int, deep_tokens: int, seed: int
) -> list[Probe]:
    """The probes: layers mixed for every type, heads of every type, long caches.

    Attention and FFN of a probe have types of their own, each type in as many probes. Layers are
    drawn in two runs of equal ones, which tells their costs apart better than all at random.
    """
    rng = random.Random(seed)
    depth = probe_depth(shape, grid.quants)
    pairs = [(a, f) for _ in range(rows_per_quant) for a, f in _paired(grid.quants, rng)]
    out = [
        Probe(layers=_layers(i, shape, grid, depth, rng), quants=_groups(grid.quants[0], a, f))
        for i, (a, f) in enumerate(pairs)
    ]
    small = LayerPlan(n_kv_heads=1, q_per_kv=1, n_ffn=MIN_FFN)
    most = max(depth // 6, 1)
    for quant, n in itertools.product(grid.quants, (1, most)):
        quants = {**_groups(quant, quant, quant), "output": quant}
        out.append(Probe(layers=(small,) * n, quants=quants, whole_vocab=True))
    for kv, q in dict.fromkeys(
        (kv, q) for kv in _ends(grid.kv_heads) for q in _ends(grid.q_per_kv)
    ):
        layers = (LayerPlan(n_kv_heads=kv, q_per_kv=q, n_ffn=MIN_FFN),) * max(depth // 3, 1)
        quants = _groups(*(grid.quants[:1] * 3))
        out += [Probe(layers=layers, quants=quants, depth_tokens=d) for d in (None, deep_tokens)]
    rng.shuffle(out)
    return out


def held_out(shape: ModelShape, quants: Sequence[str], *, n: int, seed: int) -> Iterator[Plan]:
    """Random legal plans, each layer on its own: what a search proposes, unlike the design."""
    rng = random.Random(seed)
    for _ in range(n):
        keep = rng.uniform(0.35, 1.0)
        layers = [_random_layer(shape, keep, rng) for _ in range(shape.n_layers)]
        layers[0] = layers[-1] = full_layer(shape)
        yield Plan(
            base_digest=shape.base_digest,
            layers=tuple(layers),
            quants={group: rng.choice(tuple(quants)) for group in GROUPS},
            made_by="held out",
        )


def full_layer(shape: ModelShape) -> LayerPlan:
    """A layer of which nothing is cut."""
    return LayerPlan(n_kv_heads=shape.n_kv_heads, q_per_kv=shape.q_per_kv, n_ffn=shape.n_ffn)


def probe_depth(shape: ModelShape, quants: Sequence[str]) -> int:
    """Layers of a probe: as many as the model has, as caches see them, if they fit 1 GiB."""
    widest = max(quants, key=lambda q: gguf.n_bytes_of((32,), TYPE_IDS[q]))
    one = sum(
        gguf.n_bytes_of(dims, TYPE_IDS[tensor_type(name, dims, {}, base_quant=widest)])
        for name, dims in tensor_shapes(shape, [full_layer(shape)]).items()
        if name.startswith("blk.")
    )
    return max(2, min(shape.n_layers, _MAX_PROBE_BYTES // max(one, 1)))


def _ends(nodes: Sequence[int]) -> tuple[int, ...]:
    return (nodes[0], nodes[-1])


def _groups(embedding: str, attention: str, ffn: str) -> dict[str, str]:
    return {"embedding": embedding, "output": embedding, "attention": attention, "ffn": ffn}


def _paired(quants: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """Every type once for attention and once for the FFN."""
    return list(zip(quants, rng.sample(list(quants), len(quants)), strict=True))


def _layers(
    i: int, shape: ModelShape, grid: Grid, depth: int, rng: random.Random
) -> tuple[LayerPlan, ...]:
    if i < len(grid.quants):
        return (full_layer(shape),) * depth
    first = rng.randint(1, depth - 1)
    runs = [_node(grid, rng)] * first + [_node(grid, rng)] * (depth - first)
    layers = [one for one in runs if rng.random() >= _DROPPED] or runs[:1]
    bare = [
        LayerPlan(n_kv_heads=0, q_per_kv=0, n_ffn=one.n_ffn) if rng.random() < _NO_ATTENTION
        else one for one in layers
    ]  # fmt: skip
    plan = Plan(base_digest=shape.base_digest, layers=tuple(bare))
    return built_layers(plan)


def _node(grid: Grid, rng: random.Random) -> LayerPlan:
    return LayerPlan(
        n_kv_heads=rng.choice(grid.kv_heads),
        q_per_kv=rng.choice(grid.q_per_kv),
        n_ffn=rng.choice(grid.ffn),
    )


def _random_layer(shape: ModelShape, keep: float, rng: random.Random) -> LayerPlan:
    if rng.random() < (1 - keep) / 4:
        return LayerPlan(n_kv_heads=0, q_per_kv=0, n_ffn=0)
    attention = rng.random() >= (1 - keep) / 4
    low = max(1, round(shape.n_kv_heads * keep) - 1)
    return LayerPlan(
        n_kv_heads=rng.randint(low, shape.n_kv_heads) if attention else 0,
        q_per_kv=rng.randint(1, shape.q_per_kv) if attention else 0,
        n_ffn=_even(shape.n_ffn * min(1.0, max(0.05, rng.gauss(keep, 0.2)))),
    )
