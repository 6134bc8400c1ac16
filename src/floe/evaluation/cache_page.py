"""Goals and plots of `floe bench cache`."""

from __future__ import annotations

from floe.evaluation.cache_cells import BUDGET_PERCENTS
from floe.evaluation.goals import Chart, Goal
from floe.evaluation.plot import Lines

GOALS = (
    Goal(
        field="cost_ratio_best_baseline_worst", value=1.03, at_most=True,
        about="paging cost over the best baseline of each trace and budget, worst",
    ),
    Goal(
        field="cost_ratio_best_baseline_pooled", value=0.97, at_most=True,
        about="the same, pooled",
    ),
    Goal(
        field="cost_ratio_best_single", value=0.92, at_most=True,
        about="paging cost over the best single baseline",
    ),
    Goal(
        field="stall_ratio_prefetch", value=0.75, at_most=True,
        about="stalls with both prefetches over the best baseline with the queue's",
    ),
    Goal(
        field="hit_rate_steady_over_fixed", value=-0.01,
        about="steady hit rate less that of the best fixed set, Zipf",
    ),
    Goal(field="hit_rate_steady_servegen", value=0.945, about="hit rate, ServeGen 10 of 43"),
    Goal(
        field="decision_us_p50", value=300, at_most=True,
        about="a decision with 1000 adapters, us",
    ),
)  # fmt: skip
_SHOWN = ("lru", "gdsf", "sieve", "learned", "bound")
PLOTS = (
    Lines(
        title="Mean paging cost per request over all traces",
        unit="ms",
        x_unit="budget, percent of all adapters",
        series=tuple(
            (name, tuple((float(p), f"cost_ms_{name}_{p}") for p in BUDGET_PERCENTS))
            for name in _SHOWN
        ),
    ),
    Lines(
        title="Gap to the clairvoyant bound, ours over the best single baseline",
        unit="ratio",
        x_unit="budget, percent of all adapters",
        series=(
            ("learned", tuple((float(p), f"gap_to_clairvoyant_{p}") for p in BUDGET_PERCENTS)),
        ),
    ),
)
CHARTS = (
    Chart(
        title="Misses, ServeGen, 4 of 43 equal adapters", unit="ratio",
        bars=tuple(
            (name, f"miss_ratio_servegen_4_of_43_{name}")
            for name in ("lru", "lfu", "lfu-da", "gdsf", "s3-fifo", "sieve", "learned", "belady")
        ),
    ),
)  # fmt: skip
