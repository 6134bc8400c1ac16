"""Figures for people: a table in the terminal, and a page that stands on its own."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floe.core.files import atomic_write, safe_name
from floe.evaluation import (
    cache_page,
    decode_page,
    federated_page,
    fusion_page,
    latency_page,
    paging_page,
    power_page,
    privacy_page,
    routing_page,
    tailoring_page,
)
from floe.evaluation.goals import Chart, Figures, Goal
from floe.evaluation.plot import Lines


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is shown of one benchmark, from its own module."""

    goals: tuple[Goal, ...] = ()
    charts: tuple[Chart, ...] = ()
    plots: tuple[Lines, ...] = ()


PAGES: Mapping[str, Page] = {
    "decode": Page(goals=decode_page.GOALS, charts=decode_page.CHARTS),
    "privacy": Page(goals=privacy_page.GOALS, charts=privacy_page.CHARTS),
    "fusion": Page(goals=fusion_page.GOALS, plots=fusion_page.PLOTS),
    "cache": Page(goals=cache_page.GOALS, charts=cache_page.CHARTS, plots=cache_page.PLOTS),
    "routing": Page(goals=routing_page.GOALS, charts=routing_page.CHARTS, plots=routing_page.PLOTS),
    "paging": Page(goals=paging_page.GOALS, charts=paging_page.CHARTS),
    "latency": Page(charts=latency_page.CHARTS),
    "power": Page(goals=power_page.GOALS, charts=power_page.CHARTS, plots=power_page.PLOTS),
    "federated": Page(
        goals=federated_page.GOALS, charts=federated_page.CHARTS, plots=federated_page.PLOTS
    ),
    "tailoring": Page(
        goals=tailoring_page.GOALS, charts=tailoring_page.CHARTS, plots=tailoring_page.PLOTS
    ),
}


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
    goals = PAGES.get(str(figures.get("benchmark")), Page()).goals
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
    about = PAGES.get(name, Page())
    goals = "".join(_goal_row(goal, figures) for goal in about.goals)
    charts = "".join(_chart(chart, figures) for chart in about.charts)
    charts += "".join(plot.svg(figures) for plot in about.plots)
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
