"""Figures for people: a table in the terminal, and a page that stands on its own."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floe.core.files import atomic_write, safe_name
from floe.evaluation.fusion_page import PLOTS

Figures = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A field with the value it should reach; `at_most` where less is better."""

    field: str
    about: str
    value: float
    at_most: bool = False

    def reached(self, figures: Figures) -> bool | None:
        """Whether it is reached; None when not measured."""
        found = figures.get(self.field)
        if found is None:
            return None
        return bool(found <= self.value if self.at_most else found >= self.value)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars side by side: labels with fields, all in one unit."""

    title: str
    unit: str
    bars: tuple[tuple[str, str], ...]


GOALS: Mapping[str, tuple[Goal, ...]] = {
    "decode": (
        Goal(field="ratio_decode", about="decode, Floe over bare llama.cpp", value=0.93),
        Goal(field="ratio_prefill", about="prefill, Floe over bare llama.cpp", value=0.97),
        Goal(
            field="ttft_ratio_mixed", value=0.5, at_most=True,
            about="first token of a second stream, Floe over llama-server",
        ),
        Goal(
            field="throughput_ratio_mixed", value=1.0,
            about="both streams together, Floe over llama-server",
        ),
        Goal(
            field="rss_overhead_mb", value=120, at_most=True,
            about="resident MB over bare llama.cpp",
        ),
        Goal(field="help_cpu_s", about="floe --help, CPU s", value=0.4, at_most=True),
        Goal(field="ready_cpu_s", about="server start to /ready, CPU s", value=3, at_most=True),
    ),
    "fusion": (
        Goal(field="speedup_exact_rtt80", about="speed over token by token, 80 ms", value=2.5),
        Goal(field="speedup_gated_rtt80", about="the same with the gate", value=3.2),
        Goal(field="rate_vs_slm_rtt80", about="gated speed over the SLM alone", value=0.33),
        Goal(
            field="ttft_ratio_private", value=1.08, at_most=True,
            about="first token of a private request over the bare SLM",
        ),
        Goal(
            field="budget_violations", value=0.01, at_most=True,
            about="tokens later than budget and one step",
        ),
        Goal(
            field="e2e_ratio_dead", value=1.10, at_most=True,
            about="whole answer, cloud black-holed, over the SLM alone",
        ),
        Goal(field="tv_exact", about="total variation", value=0.02, at_most=True),
        Goal(field="gap_recovered", about="gap recovered, pooled", value=1.05),
        Goal(field="gap_recovered_gsm8k", about="gap recovered, GSM8K", value=1.3),
        Goal(field="gap_recovered_mbpp", about="gap recovered, MBPP", value=0.85),
        Goal(field="gap_recovered_gated", about="gap recovered with the gate", value=0.8),
        Goal(field="cloud_token_share", about="share of asked tokens", value=0.5, at_most=True),
        Goal(field="takeovers", about="takeovers that went on", value=1.0),
    ),
}  # fmt: skip
CHARTS: Mapping[str, tuple[Chart, ...]] = {
    "decode": (
        Chart(
            title="Decode, one stream", unit="tokens/s",
            bars=(
                ("bare llama.cpp", "bare_decode_tokens_s"),
                ("Floe, feed", "floe_decode_tokens_s"),
                ("Floe, asyncio", "floe_async_decode_tokens_s"),
            ),
        ),
        Chart(
            title="Prefill", unit="tokens/s",
            bars=(
                ("bare llama.cpp", "bare_prefill_tokens_s"),
                ("Floe", "floe_prefill_tokens_s"),
            ),
        ),
        Chart(
            title="First token of the second of two streams with different adapters", unit="ms",
            bars=(
                ("llama-server", "llama_server_ttft_second_ms"),
                ("Floe", "floe_ttft_second_ms"),
            ),
        ),
        Chart(
            title="Both streams together", unit="tokens/s",
            bars=(
                ("llama-server", "llama_server_mixed_tokens_s"),
                ("Floe", "floe_mixed_tokens_s"),
            ),
        ),
        Chart(
            title="Resident memory, one context of 2048 tokens", unit="MB",
            bars=(("bare llama.cpp", "bare_rss_mb"), ("Floe", "floe_rss_mb")),
        ),
    ),
}  # fmt: skip


def shown(value: Any) -> str:
    """A value for people: "not measured" for None, at most four significant digits."""
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_figures(figures: Figures) -> None:
    """A table on stdout: goals first, then every field."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    goals = GOALS.get(str(figures.get("benchmark")), ())
    if goals:
        table = Table(title=f"floe bench {figures['benchmark']} ({figures.get('form')})")
        for column in ("figure", "measured", "goal", ""):
            table.add_column(column)
        for goal in goals:
            table.add_row(
                goal.about, shown(figures.get(goal.field)), _goal(goal), _mark(goal, figures)
            )
        console.print(table)
    rest = Table(show_header=False)
    for name, value in figures.items():
        rest.add_row(name, shown(value))
    console.print(rest)


def _goal(goal: Goal) -> str:
    return f"{'at most' if goal.at_most else 'at least'} {goal.value:g}"


def _mark(goal: Goal, figures: Figures) -> str:
    return {True: "reached", False: "missed", None: ""}[goal.reached(figures)]


def write_page(name: str, figures: Figures, folder: Path) -> Path:
    """Write NAME.html into `folder`: goals, charts, every field, machine and command.

    The page needs nothing from outside. Returns its path.
    """
    path = folder / f"{safe_name(name, what='benchmark')}.html"
    with atomic_write(path) as file:
        file.write(page(name, figures, command=_command(name, figures)).encode())
    return path


def _command(name: str, figures: Figures) -> str:
    return shlex.join(
        ["floe", "bench", name, *(["--full"] if figures.get("form") == "full" else [])]
    )


def page(name: str, figures: Figures, *, command: str) -> str:
    """The page as well-formed XHTML text."""
    title = f"floe bench {name}"
    goals = "".join(_goal_row(goal, figures) for goal in GOALS.get(name, ()))
    charts = "".join(_chart(chart, figures) for chart in CHARTS.get(name, ()))
    charts += "".join(plot.svg(figures) for plot in PLOTS) if name == "fusion" else ""
    rows = "".join(
        f"<tr><td>{_text(key)}</td><td>{_text(shown(value))}</td></tr>"
        for key, value in figures.items()
    )
    machine = ", ".join(
        shown(figures[k])
        for k in ("cpu", "architecture", "system", "made_at", "commit")
        if figures.get(k) is not None
    )
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head>'
        f'<meta charset="utf-8"/><title>{_text(title)}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{_text(title)}</h1><p>{_text(machine)}</p>"
        f"<p><code>{_text(command)}</code></p>"
        f"<table><tr><th>figure</th><th>measured</th><th>goal</th><th></th></tr>{goals}</table>"
        f"{charts}<h2>Every field</h2><table>{rows}</table></body></html>\n"
    )


def _goal_row(goal: Goal, figures: Figures) -> str:
    cells = (goal.about, shown(figures.get(goal.field)), _goal(goal), _mark(goal, figures))
    return "<tr>" + "".join(f"<td>{_text(c)}</td>" for c in cells) + "</tr>"


def _chart(chart: Chart, figures: Figures) -> str:
    """Horizontal bars to one scale; a bar that was not measured is only named."""
    values = [(label, figures.get(key)) for label, key in chart.bars]
    most = max((v for _, v in values if v is not None), default=0.0)
    bars = "".join(_bar(i, label, v, most) for i, (label, v) in enumerate(values))
    return (
        f"<h2>{_text(chart.title)}, {_text(chart.unit)}</h2>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{26 * len(values)}" '
        f'role="img" aria-label="{_text(chart.title)}">{bars}</svg>'
    )


def _bar(i: int, label: str, value: float | None, most: float) -> str:
    width = round(360 * value / most) if value and most > 0 else 0
    return (
        f'<text x="0" y="{26 * i + 17}">{_text(label)}</text>'
        f'<rect x="150" y="{26 * i + 4}" width="{max(width, 0)}" height="18"/>'
        f'<text x="{158 + max(width, 0)}" y="{26 * i + 17}">{_text(shown(value))}</text>'
    )


def _text(value: str) -> str:
    return html.escape(value, quote=True)


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:720px;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;"
    "text-align:left;border-bottom:1px solid #ddd}h2{font-size:1.05em;margin-top:1.6em}"
    "svg text{font-size:13px;fill:#222}rect{fill:#3a6ea5}code{background:#eee;padding:.1em .4em}"
)
