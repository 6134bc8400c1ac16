"""A plan as a short list of levels: one number for each thing that a search may change.

Genes stand in the order of the layers, attention before FFN; then the quantization type of each
group that has a choice, then the criterion, if there are several. Level 0 is the smallest option.
What the rules let nothing be cut of has no gene.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from floe.core.errors import BadPlan
from floe.tailoring.plan import GROUPS, QUANTS, LayerPlan, ModelShape, Plan
from floe.tailoring.rules import LayerBounds, Rules, layer_bounds

Levels = tuple[int, ...]
Heads = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a search chooses from beside the rules of the cut.

    `ffn_step` channels are one level (a multiple of the rules' `ffn_multiple`). `quants` gives each
    tensor group its types, from few bits to many; a group without choices has `fixed_quants`.
    `importances` are the criteria a plan may name.
    """

    ffn_step: int = 128
    quants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed_quants: Mapping[str, str] = field(default_factory=dict)
    importances: tuple[str, ...] = ("taylor",)


@dataclass(frozen=True, kw_only=True)
class Gene:
    """One choice among `options`, small to large.

    `kind` is "attention" (options are KV heads and query heads for each), "ffn" (channels),
    "quant" or "importance" (names); `layer` is -1 and `group` a tensor group for "quant".
    """

    kind: str
    options: tuple[int | str | Heads, ...]
    layer: int = -1
    group: str = ""

    @property
    def top(self) -> int:
        """The largest level: nothing is cut."""
        return len(self.options) - 1

    @property
    def is_width(self) -> bool:
        """Whether the level says how much stays of half a layer."""
        return self.layer >= 0


def make_genes(shape: ModelShape, rules: Rules, choices: Choices) -> tuple[Gene, ...]:
    """What can be chosen of a model under these rules.

    Raises:
        BadPlan: a step, type or criterion that cannot be used, or nothing to choose at all.
    """
    _check(choices, rules)
    heads = _head_options(shape)
    channels = sorted({*range(0, shape.n_ffn, choices.ffn_step), shape.n_ffn})
    bounds = [layer_bounds(shape, rules, n) for n in range(shape.n_layers)]
    genes: list[Gene] = []
    for layer, bound in enumerate(bounds):
        allowed = [pair for pair in heads if _keeps(pair, bound)]
        genes.append(Gene(kind="attention", options=tuple(allowed), layer=layer))
        widths = sorted({*(c for c in channels if c >= bound.min_ffn), bound.min_ffn})
        genes.append(Gene(kind="ffn", options=tuple(widths), layer=layer))
    if all(g.options[0] in (0, (0, 0)) for g in genes):  # one layer stays, the last, and some FFN
        genes[-1] = Gene(kind="ffn", options=genes[-1].options[1:], layer=shape.n_layers - 1)
    genes += [
        Gene(kind="quant", options=tuple(types), group=group)
        for group, types in choices.quants.items()
    ]
    genes.append(Gene(kind="importance", options=tuple(choices.importances)))
    open_ = tuple(g for g in genes if len(g.options) > 1)
    if not open_:
        raise BadPlan("the rules leave nothing to choose; guard or exclude fewer layers")
    return open_


def _check(choices: Choices, rules: Rules) -> None:
    if choices.ffn_step <= 0 or choices.ffn_step % rules.ffn_multiple:
        raise BadPlan(
            f"ffn_step {choices.ffn_step} is no multiple of {rules.ffn_multiple}, "
            "which the rules ask for"
        )
    if not choices.importances:
        raise BadPlan("no importance is named; give at least one, for example taylor")
    types = [(g, t) for g, some in choices.quants.items() for t in some]
    for group, kind in [*types, *choices.fixed_quants.items()]:
        if group not in GROUPS or kind not in QUANTS:
            raise BadPlan(
                f"no quantization {kind!r} of {group!r}; groups are {', '.join(GROUPS)}; "
                f"types are {', '.join(QUANTS)}"
            )
    empty = [group for group, some in choices.quants.items() if not some]
    if empty:
        raise BadPlan(f"no quantization types to choose from for {', '.join(empty)}")


def _head_options(shape: ModelShape) -> list[Heads]:
    """Whole KV groups with equally many query heads each, by their weights (bug-log D01, D08)."""
    pairs = [(k, q) for k in range(1, shape.n_kv_heads + 1) for q in range(1, shape.q_per_kv + 1)]
    return [(0, 0), *sorted(pairs, key=lambda p: (_weight(p), p[0]))]


def _keeps(heads: Heads, bound: LayerBounds) -> bool:
    if heads[0] == 0:
        return bound.min_kv_heads == 0
    return heads[0] >= bound.min_kv_heads and heads[1] >= bound.min_q_per_kv


def _weight(heads: Heads) -> int:
    return heads[0] * heads[1] + heads[0]


@dataclass(frozen=True, kw_only=True)
class Coding:
    """From plans to levels and back."""

    shape: ModelShape
    choices: Choices
    genes: tuple[Gene, ...]

    def plan(self, levels: Sequence[int], *, made_by: str = "") -> Plan:
        """The plan of these levels.

        Raises:
            ValueError: not one level of each gene.
        """
        if len(levels) != len(self.genes) or any(
            not 0 <= n <= g.top for g, n in zip(self.genes, levels, strict=True)
        ):
            raise ValueError("levels outside the space")
        shape = self.shape
        heads: list[Heads] = [(shape.n_kv_heads, shape.q_per_kv)] * shape.n_layers
        channels = [shape.n_ffn] * shape.n_layers
        quants = dict(self.choices.fixed_quants)
        quants |= {g: types[0] for g, types in self.choices.quants.items()}
        importance = self.choices.importances[0]
        for gene, level in zip(self.genes, levels, strict=True):
            option = gene.options[level]
            if isinstance(option, tuple):
                heads[gene.layer] = option
            elif isinstance(option, int):
                channels[gene.layer] = option
            elif gene.kind == "quant":
                quants[gene.group] = option
            else:
                importance = option
        layers = tuple(
            LayerPlan(n_kv_heads=k, q_per_kv=q, n_ffn=f)
            for (k, q), f in zip(heads, channels, strict=True)
        )
        return Plan(
            base_digest=shape.base_digest,
            layers=layers,
            quants=quants,
            importance=importance,
            made_by=made_by,
        )

    def levels(self, plan: Plan) -> Levels:
        """The levels of a plan; a size between two options becomes the smaller one.

        Raises:
            BadPlan: the plan is of another model, or names a type or criterion without a level.
        """
        if plan.base_digest != self.shape.base_digest or len(plan.layers) != self.shape.n_layers:
            raise BadPlan(
                "the plan was made for another model "
                f"({len(plan.layers)} layers, digest {plan.base_digest[:12]})"
            )
        return tuple(self._level(gene, plan) for gene in self.genes)

    def _level(self, gene: Gene, plan: Plan) -> int:
        if gene.kind == "attention":
            layer = plan.layers[gene.layer]
            heads = (layer.n_kv_heads, layer.q_per_kv if layer.n_kv_heads else 0)
            if heads in gene.options:
                return gene.options.index(heads)
            return _floor_level(gene, _weight(heads))
        if gene.kind == "ffn":
            return _floor_level(gene, plan.layers[gene.layer].n_ffn)
        wanted = plan.quants.get(gene.group, "") if gene.kind == "quant" else plan.importance
        if wanted not in gene.options:
            raise BadPlan(
                f"the plan has {wanted!r} as {gene.kind} {gene.group}, which the space does not "
                f"have; it has {', '.join(str(o) for o in gene.options)}"
            )
        return gene.options.index(wanted)


def _floor_level(gene: Gene, size: int) -> int:
    sizes = [_weight(o) if isinstance(o, tuple) else int(o) for o in gene.options]
    return max((i for i, s in enumerate(sizes) if s <= size), default=0)


def between(low: Levels, target: Levels, share: float, genes: Sequence[Gene]) -> Levels:
    """Widths at `share` of the way from `low` to `target`, rounded down; the rest as in target."""
    return tuple(
        a + math.floor((b - a) * share + 1e-9) if g.is_width and b > a else b
        for g, a, b in zip(genes, low, target, strict=True)
    )
