"""`floe bench cache`: replacement, stalls, steady hit rates and the time of a decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from floe.evaluation import cache_replace, cache_waits
from floe.evaluation.cache_cells import BUDGET_PERCENTS
from floe.evaluation.cache_steady import decision_figures, equal_size_figures, steady_figures

SEED = 310
"""Held out (`cache_cells`); 100 to 150 were looked at while the policy was built."""

Say = Callable[[str], None]


def cache_benchmark(full: bool, say: Say) -> dict[str, Any]:
    """Issue 5's figures of the cache, on held-out days, halves and seeds."""
    n, seeds = (5000, (SEED, SEED + 1, SEED + 2)) if full else (1500, (SEED,))
    cells = cache_replace.measure_all(n, seeds, BUDGET_PERCENTS, say)
    n_stall, percents = (3000, BUDGET_PERCENTS) if full else (700, (10, 50))
    waits = cache_waits.measure_all(n_stall, SEED, percents, say)
    say("steady hit rates")
    n_steady = 20_000
    return {
        "requests": n,
        "seeds": len(seeds),
        "first_seed": SEED,
        **cache_replace.replacement_figures(cells),
        "stall_requests": n_stall,
        **cache_waits.stall_figures(waits),
        "steady_requests": n_steady,
        **steady_figures(n_steady, SEED),
        **equal_size_figures(n_steady, SEED),
        **decision_figures(),
    }
