"""Replacement alone: the paging cost of every policy on every trace and budget.

The first quarter of each trace is warm-up: it counts for nobody and gives `static-best` its set.
The best set in hindsight knows the future (which session comes again, say); it is reported beside
the clairvoyant bound and is no baseline.

A ratio of a handful of misses is noise, and the least of seven noisy baselines looks better than
any of them is. So a cell in which every policy misses seldom is measured on more seeds, whichever
way its ratio points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from floe.adapters.policies import BASELINES
from floe.adapters.policy import ReplacementPolicy
from floe.evaluation.cache_bound import clairvoyant
from floe.evaluation.cache_cells import budget_bytes, static_best, traces
from floe.evaluation.cache_simulate import simulate
from floe.evaluation.cache_trace import Trace

Say = Callable[[str], None]
OURS, STATIC, HINDSIGHT = "learned", "static-best", "static-hindsight"
SEEN_SHARE = 0.25
SIMPLE = (*BASELINES, STATIC)
LEAST_MISSES = 100
MOST_MORE_SEEDS = 8


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Mean cost per request in ms by policy, and the clairvoyant bound.

    `misses`: the fewest of any other policy, summed over `seeds` runs.
    """

    trace: str
    percent: int
    cost_ms: Mapping[str, float]
    bound_ms: float
    misses: int
    seeds: int = 1

    def best(self, names: Iterable[str] = SIMPLE) -> float:
        """The least cost among `names`."""
        return min(self.cost_ms[name] for name in names)

    @property
    def ratio(self) -> float:
        """Ours over the best simple policy."""
        return self.cost_ms[OURS] / self.best()


def measure(trace: Trace, percent: int) -> Cell:
    """One trace and budget, every policy."""
    budget = budget_bytes(trace, percent)
    warmup = int(len(trace) * SEEN_SHARE)

    misses = []

    def cost_ms(policy: str | ReplacementPolicy) -> float:
        found = simulate(trace, policy=policy, budget_bytes=budget, warmup=warmup)
        if found.policy != OURS:
            misses.append(found.misses)
        return found.cost_ms_per_request

    costs = {name: cost_ms(name) for name in (*BASELINES, OURS)}
    for name, share in ((STATIC, SEEN_SHARE), (HINDSIGHT, 1.0)):
        costs[name] = cost_ms(static_best(trace, budget_bytes=budget, share=share))
    tail = trace.part(warmup, len(trace))
    bound = clairvoyant(tail, budget_bytes=budget, is_warm=True)
    return Cell(
        trace=trace.name, percent=percent, cost_ms=costs, bound_ms=bound.cost_ms / len(tail),
        misses=min(misses),
    )  # fmt: skip


def measure_all(
    n: int, seeds: Iterable[int], percents: Iterable[int], say: Say = lambda _: None
) -> list[Cell]:
    """Cells averaged over the seeds, and over those that follow where misses are few."""
    percents, seeds = tuple(percents), tuple(seeds)
    found: dict[tuple[str, int], list[Cell]] = {}
    for seed in seeds:
        for trace in traces(n, seed):
            say(f"replacement: {trace.name}, seed {seed}")
            for percent in percents:
                found.setdefault((trace.name, percent), []).append(measure(trace, percent))
    for seed in range(max(seeds) + 1, max(seeds) + 1 + MOST_MORE_SEEDS):
        few = {at for at, cells in found.items() if sum(c.misses for c in cells) < LEAST_MISSES}
        if few:
            say(f"replacement: {len(few)} cells with few misses, seed {seed}")
        for trace in traces(n, seed) if few else ():
            for percent in percents:
                if (trace.name, percent) in few:
                    found[trace.name, percent].append(measure(trace, percent))
    return [_mean(cells) for cells in found.values()]


def _mean(cells: list[Cell]) -> Cell:
    first = cells[0]
    return Cell(
        trace=first.trace, percent=first.percent,
        cost_ms={
            name: sum(c.cost_ms[name] for c in cells) / len(cells) for name in first.cost_ms
        },
        bound_ms=sum(c.bound_ms for c in cells) / len(cells),
        misses=sum(c.misses for c in cells), seeds=len(cells),
    )  # fmt: skip


def replacement_figures(cells: list[Cell]) -> dict[str, float | str]:
    """The figures of the issue, and every cell in flat fields."""
    worst = max(cells, key=lambda c: c.ratio)
    with_hindsight = (*SIMPLE, HINDSIGHT)
    ours = _total(cells, OURS)
    single = min(SIMPLE, key=lambda name: _total(cells, name))
    bound = sum(c.bound_ms for c in cells)
    out: dict[str, float | str] = {
        "cost_ratio_best_baseline_worst": worst.ratio,
        "cost_ratio_best_baseline_worst_cell": f"{worst.trace} {worst.percent}%",
        "cost_ratio_best_baseline_pooled": ours / sum(c.best() for c in cells),
        "cost_ratio_best_baseline_geometric": math.exp(
            sum(math.log(c.ratio) for c in cells) / len(cells)
        ),
        "cost_ratio_hindsight_worst": max(c.cost_ms[OURS] / c.best(with_hindsight) for c in cells),
        "cost_ratio_hindsight_pooled": ours / sum(c.best(with_hindsight) for c in cells),
        "best_single": single,
        "cost_ratio_best_single": ours / _total(cells, single),
        "gap_to_clairvoyant": (ours - bound) / (_total(cells, single) - bound),
        "bound_method": "dual of the linear relaxation, a lower bound",
    }
    for percent in sorted({c.percent for c in cells}):
        at = [c for c in cells if c.percent == percent]
        single_ms, bound_ms = _total(at, single), sum(c.bound_ms for c in at)
        out[f"gap_to_clairvoyant_{percent}"] = (_total(at, OURS) - bound_ms) / (
            single_ms - bound_ms
        )
        for name in (*SIMPLE, HINDSIGHT, OURS):
            out[f"cost_ms_{name}_{percent}"] = _total(at, name) / len(at)
        out[f"cost_ms_bound_{percent}"] = bound_ms / len(at)
    for c in cells:
        out[f"ratio_{c.trace}_{c.percent}"] = c.ratio
        out[f"misses_{c.trace}_{c.percent}"] = c.misses
        out[f"seeds_{c.trace}_{c.percent}"] = c.seeds
        for name, ms in c.cost_ms.items():
            out[f"cost_ms_{c.trace}_{c.percent}_{name}"] = ms
        out[f"cost_ms_{c.trace}_{c.percent}_bound"] = c.bound_ms
    return out


def _total(cells: Iterable[Cell], name: str) -> float:
    return sum(c.cost_ms[name] for c in cells)
