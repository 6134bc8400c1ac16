"""Stalls of requests: ours with both prefetches over the best baseline with queue prefetch only.

Only budgets that hold two adapters of mean size for each lane: with less, requests wait for each
other's leases and not for the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from floe.adapters.policies import BASELINES, make_policy
from floe.evaluation.cache_cells import budget_bytes, traces
from floe.evaluation.cache_stalls import LANES, Stalled, simulate_stalls
from floe.evaluation.cache_trace import Trace

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Mean stall per request, ms: by baseline, ours with queue prefetch, ours with both."""

    trace: str
    percent: int
    simple_ms: dict[str, float]
    queue_only_ms: float
    both: Stalled

    @property
    def best_ms(self) -> float:
        """Of the baselines."""
        return min(self.simple_ms.values())


def measure(trace: Trace, percent: int) -> Waits:
    """One trace and budget."""
    budget = budget_bytes(trace, percent)
    simple = {
        name: simulate_stalls(
            trace, policy=make_policy(name), budget_bytes=budget
        ).stall_ms_per_request
        for name in BASELINES
    }
    queue = simulate_stalls(trace, policy=make_policy("learned"), budget_bytes=budget)
    both = simulate_stalls(
        trace, policy=make_policy("learned"), budget_bytes=budget, predicted_prefetch=True
    )
    return Waits(
        trace=trace.name, percent=percent, simple_ms=simple,
        queue_only_ms=queue.stall_ms_per_request, both=both,
    )  # fmt: skip


def measure_all(
    n: int, seed: int, percents: Iterable[int], say: Say = lambda _: None
) -> list[Waits]:
    """Every trace and every budget that is big enough."""
    percents = tuple(percents)
    out = []
    for trace in traces(n, seed):
        say(f"stalls: {trace.name}, seed {seed}")
        fitting = [p for p in percents if p / 100 * len(trace.names) >= 2 * LANES]
        out += [measure(trace, percent) for percent in fitting]
    return out


def stall_figures(waits: list[Waits]) -> dict[str, float]:
    """The figure of the issue, and every cell in flat fields."""
    best = sum(w.best_ms for w in waits)
    prefetched = sum(w.both.prefetched for w in waits)
    out: dict[str, float] = {
        "stall_ratio_prefetch": sum(w.both.stall_ms_per_request for w in waits) / best,
        "stall_ratio_queue_only": sum(w.queue_only_ms for w in waits) / best,
        "stall_ratio_prefetch_mean": sum(w.both.stall_ms_per_request / w.best_ms for w in waits)
        / len(waits),
        "prefetched": prefetched,
        "prefetch_used_share": sum(w.both.prefetch_used for w in waits) / max(prefetched, 1),
        "prefetch_wasted_share": sum(w.both.prefetch_wasted for w in waits) / max(prefetched, 1),
        "stall_lanes": LANES,
    }
    for w in waits:
        at = f"{w.trace}_{w.percent}"
        out[f"stall_ms_{at}_best"] = w.best_ms
        out[f"stall_ms_{at}_queue_only"] = w.queue_only_ms
        out[f"stall_ms_{at}_both"] = w.both.stall_ms_per_request
        out[f"stall_ratio_{at}"] = w.both.stall_ms_per_request / w.best_ms
    return out
