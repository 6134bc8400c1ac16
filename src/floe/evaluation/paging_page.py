"""Goals and bars of `floe bench paging`."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal

GOALS = (
    Goal(
        field="ttft_p95_ratio_lru", value=0.7, at_most=True,
        about="first token, 95th percentile, over LRU without prefetch (routed, slow reads)",
    ),
    Goal(field="errors", value=0, at_most=True, about="requests that failed"),
)  # fmt: skip


def _bars(field: str) -> tuple[tuple[str, str], ...]:
    phases = (("routed", ""), ("by name", "named_"), ("routed, fast disk", "disk_"))
    return tuple(
        (f"{phase}, {label}", f"{prefix}{side}_{field}")
        for phase, prefix in phases
        for label, side in (("Floe", "floe"), ("LRU", "lru"))
    )


CHARTS = (
    Chart(title="First token, 95th percentile", unit="ms", bars=_bars("ttft_p95_ms")),
    Chart(title="First token, median", unit="ms", bars=_bars("ttft_p50_ms")),
    Chart(title="Adapters found in memory", unit="share of uses", bars=_bars("hit_rate")),
)
