"""Goals and plots of `floe bench routing`."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal
from floe.evaluation.plot import Lines

_ABOUT = {
    "static_gate": "the gate with the best fixed set",
    "lru_gate": "the gate with LRU",
    "edgelora": "EdgeLoRA's rule",
    "blind_linucb": "LinUCB blind to costs, with LRU",
    "epsilon_greedy": "epsilon-greedy with costs",
}
GOALS = (
    Goal(field="route_accuracy", about="nearest centroid right, seven domains", value=0.93),
    *(
        Goal(field=f"regret_ratio_{name}", about=f"total over {about}", value=0.9, at_most=True)
        for name, about in _ABOUT.items()
    ),
    Goal(
        field="regret_growth_generated", value=0.95, at_most=True,
        about="exponent of the regret's growth (1 = linear)",
    ),
    Goal(
        field="decision_us_p50", value=300, at_most=True,
        about="microseconds a decision, 1,000 adapters, 64 numbers",
    ),
)  # fmt: skip
_NAMES = {"ours": "cache-aware bandit with epochs", **_ABOUT}
CHARTS = tuple(
    Chart(
        title=f"Lost against the best choice without paging, {world}",
        unit="nats a token",
        bars=tuple((about, f"total_{name}_{world}") for name, about in _NAMES.items()),
    )
    for world in ("generated", "replay")
)


def _grown(name: str, world: str) -> tuple[tuple[float | str, str], ...]:
    points = ((20_000 / part, f"regret_{name}_t{part}_{world}") for part in (8, 4, 2, 1))
    return tuple(points)


PLOTS = tuple(
    Lines(
        title=f"Regret against the best fixed set, {world}",
        unit="nats a token, summed",
        x_unit="requests",
        series=tuple(
            (_NAMES[name], _grown(name, world))
            for name in ("ours", "epsilon_greedy", "blind_linucb", "edgelora", "lru_gate")
        ),
    )
    for world in ("generated", "replay")
)
