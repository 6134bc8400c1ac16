"""The plans that a search may propose: every one legal, every one inside all budgets.

`repair` is what holds the budgets: it shrinks what is too large in proportion, then gives back
what still fits, in a fixed order, so that the same levels always become the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets, Cost, CostModel
from floe.tailoring.genes import Choices, Coding, Gene, Levels, between, make_genes
from floe.tailoring.memory import Room, memory_of, parameters
from floe.tailoring.plan import ModelShape, Plan
from floe.tailoring.rules import Rules

_GRID = 64  # steps of the proportional shrinking


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One budget beside what a plan uses of it."""

    name: str
    used: float
    budget: float

    @property
    def holds(self) -> bool:
        """Whether the plan is inside."""
        return self.used <= self.budget


class Space:
    """The legal plans of a model for a device."""

    def __init__(
        self,
        *,
        shape: ModelShape,
        cost: CostModel,
        budgets: Budgets,
        rules: Rules | None = None,
        choices: Choices | None = None,
        room: Room | None = None,
    ) -> None:
        """`room` is for the budget of the KV cache alone; memory is the cost model's.

        Raises:
            BadPlan: rules that cannot be read, or budgets that the smallest plan does not keep.
        """
        self.shape, self.budgets, self.costs = shape, budgets, cost
        self.rules, self.choices = rules or Rules(), choices or Choices()
        self.genes: tuple[Gene, ...] = make_genes(shape, self.rules, self.choices)
        self.coding = Coding(shape=shape, choices=self.choices, genes=self.genes)
        self._room = room or Room()
        self._known: dict[Levels, bool] = {}
        self.lowest: Levels = (0,) * len(self.genes)
        self.highest: Levels = tuple(g.top for g in self.genes)
        if not self.fits(self.lowest):
            raise BadPlan(_impossible(self.limits(self.plan(self.lowest))))

    def plan(self, levels: Sequence[int], *, made_by: str = "") -> Plan:
        """The plan of these levels (budgets are not looked at)."""
        return self.coding.plan(levels, made_by=made_by)

    def levels(self, plan: Plan) -> Levels:
        """The levels of a plan of this model, sizes rounded down.

        Raises:
            BadPlan: the plan is of another model or names what the space does not have.
        """
        return self.coding.levels(plan)

    def limits(self, plan: Plan) -> tuple[Limit, ...]:
        """What the plan uses of each budget that is set (bug-log D16).

        Raises:
            BadPlan: an energy budget without energy in the cost.
        """
        cost = self.costs.cost(plan)
        return tuple(
            Limit(name=name, used=used(plan, cost), budget=float(budget))
            for name, budget, used in self._checks()
            if budget is not None
        )

    def keeps_budgets(self, plan: Plan) -> bool:
        """Whether every budget holds."""
        return all(limit.holds for limit in self.limits(plan))

    def fits(self, levels: Levels) -> bool:
        """The same for levels; remembered."""
        if levels not in self._known:
            self._known[levels] = self.keeps_budgets(self.plan(levels))
        return self._known[levels]

    def repair(self, plan: Plan, *, fill: bool = True) -> Plan:
        """The nearest plan inside all budgets; with `fill`, no half that stays could be larger."""
        levels = self.repair_levels(self.levels(plan), fill=fill)
        return self.plan(levels, made_by=plan.made_by)

    def repair_levels(self, levels: Sequence[int], *, fill: bool = True) -> Levels:
        """The same for levels, which may lie outside the genes' ranges."""
        target = tuple(min(max(int(n), 0), g.top) for g, n in zip(self.genes, levels, strict=True))
        if not self.fits(target):
            target = self._lower_bits(target)
            target = self._widest(self.lowest, target)
        if fill:
            target = self._grown(target)
        return target

    def random(self, rng: np.random.Generator) -> Levels:
        """Levels inside the budgets, from nearly uniform ones to wild ones."""
        n = len(self.genes)
        shares = np.clip(1.0 + rng.uniform(0.0, 1.0) * rng.uniform(-1.0, 1.0, n), 0.0, 2.0)
        shares /= shares.max()
        shares[rng.random(n) < rng.choice((0.0, 0.1, 0.2))] = 0.0
        drawn = [
            round(g.top * float(s)) if g.is_width else int(rng.integers(g.top + 1))
            for g, s in zip(self.genes, shares, strict=True)
        ]
        return self.repair_levels(drawn)

    def uniform(self) -> Levels:
        """The same share of every half (guarded ones aside)."""
        return self.repair_levels(self.highest)

    def _lower_bits(self, target: Levels) -> Levels:
        """Bits are lowered only where the narrowest model does not fit with them."""
        order = [i for i, g in enumerate(self.genes) if g.kind == "quant"]
        current = list(target)
        while not self.fits(between(self.lowest, tuple(current), 0.0, self.genes)):
            open_ = [i for i in order if current[i] > 0]
            if not open_:
                break
            current[max(open_, key=lambda i: current[i])] -= 1
        return tuple(current)

    def _widest(self, low: Levels, target: Levels) -> Levels:
        """The largest share of the way from `low` to `target` that fits, then what else fits."""
        best = between(low, target, 0.0, self.genes)
        if not self.fits(best):  # a criterion does not cost; the widths of `low` always fit
            return self.lowest
        under, over = 0, _GRID
        while over - under > 1:
            middle = (under + over) // 2
            tried = between(low, target, middle / _GRID, self.genes)
            if self.fits(tried):
                best, under = tried, middle
            else:
                over = middle
        return self._raised(best, target)

    def _grown(self, levels: Levels) -> Levels:
        """Widths that stay are raised in proportion, then singly, as long as they fit."""
        top = tuple(
            g.top if g.is_width and n > 0 else n for g, n in zip(self.genes, levels, strict=True)
        )
        if self.fits(top):
            return top
        return self._widest(levels, top)

    def _raised(self, levels: Levels, target: Levels) -> Levels:
        """Single steps up, the half that is furthest behind its target first."""
        current = list(levels)
        open_ = {i for i, g in enumerate(self.genes) if g.is_width and current[i] < target[i]}
        while open_:
            i = min(open_, key=lambda k: (current[k] / target[k], k))
            current[i] += 1
            if not self.fits(tuple(current)):
                current[i] -= 1
                open_.discard(i)
            elif current[i] == target[i]:
                open_.discard(i)
        return tuple(current)

    def _checks(
        self,
    ) -> tuple[tuple[str, float | None, Callable[[Plan, Cost], float]], ...]:
        b = self.budgets
        return (
            ("memory_bytes", b.memory_bytes, lambda _, c: c.memory_bytes),
            ("decode_ms", b.decode_ms, lambda _, c: c.decode_ms),
            ("prefill_ms", b.prefill_ms, lambda _, c: c.prefill_ms),
            ("energy_mj", b.energy_mj, _energy),
            (
                "parameters",
                b.parameters,
                lambda p, _: parameters(self.shape, p),
            ),
            (
                "kv_bytes",
                b.kv_bytes,
                lambda p, _: memory_of(self.shape, p, self._room).kv_bytes,
            ),
        )


def _energy(_: Plan, cost: Cost) -> float:
    if cost.energy_mj is None:
        raise BadPlan(
            "there is an energy budget but the device profile has no energy; "
            "profile with a meter or a board model, or leave the energy budget out"
        )
    return cost.energy_mj


def _impossible(limits: Sequence[Limit]) -> str:
    tightest = max(limits, key=lambda x: x.used / x.budget if x.budget > 0 else float("inf"))
    return (
        f"no plan keeps the budget {tightest.name} = {tightest.budget:g}: the smallest allowed "
        f"model needs {tightest.used:.6g}; raise it, guard fewer layers, or allow fewer bits"
    )
