"""A page on its own: what controllers did on a simulated board, over time and against each other.

Every joule on it is modelled, and the page says so.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from floe.power.boards.model import BoardModel
from floe.power.choices import Option, frontier
from floe.power.optimum import Optimum
from floe.power.simulate import Run
from floe.power.workload import Job

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT = 860, 150, 60, 10, 200
_COLOURS = ("#3a6ea5", "#b5482a", "#4d8b4a", "#7a5ba6", "#a08020", "#777777", "#208080")
Series = Mapping[str, Sequence[tuple[float, float]]]
_STYLE = (
    "body{font-family:system-ui,sans-serif;margin:2em;max-width:1100px}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}"
    "svg{font-size:12px;display:block}h2{font-size:1.1em;margin:1.2em 0 .2em}"
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """One controller's run, with its timeline."""

    name: str
    run: Run


def page(
    model: BoardModel,
    jobs: Sequence[Job],
    told: Sequence[Told],
    *,
    fixed: Sequence[Run],
    bound: Optimum,
) -> str:
    """The page. `fixed` are runs at each setting, for the curve; `bound` is the optimum."""
    board = html.escape(model.board.name)
    charts = [
        plot(f"{domain.name} clock", unit, {t.name: _clock(model, t.run, k) for t in told})
        for k, domain in enumerate(model.board.domains)
        for unit in ("W" if domain.name == "limit" else "MHz",)
    ]
    charts += [
        plot("power (modelled)", "W", {t.name: _steps(t.run, "power_w") for t in told}),
        plot(
            "temperature (modelled)",
            "C",
            {t.name: _steps(t.run, "temperature_c") for t in told},
            line=model.thermal.limit_c,
        ),
        plot(
            "first token, share of its goal", "1",
            {t.name: _deadlines(t.run, jobs, first=True) for t in told}, line=1.0, dots=True,
        ),
        plot(
            "tokens, share of their goal", "1",
            {t.name: _deadlines(t.run, jobs, first=False) for t in told}, line=1.0, dots=True,
        ),
        _pareto(told, fixed, bound, n_jobs=len(jobs)),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head>'
        f'<meta charset="utf-8"/><title>floe power: {board}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{board}, {len(jobs)} requests</h1>"
        "<p>The board is simulated: all joules, watts, degrees and times are <b>modelled</b>, "
        "fitted to published measurements. They are no claim about any machine.</p>"
        f"{_table(told, bound)}{''.join(charts)}</body></html>\n"
    )


def plot(
    title: str, unit: str, series: Series, *, line: float | None = None, dots: bool = False,
    x_unit: str = "s",
) -> str:  # fmt: skip
    """Lines, or dots, over one axis in SVG; `line` is a level to keep below."""
    heading = f"<h2>{html.escape(title)}, {html.escape(unit)}</h2>"
    points = [point for one in series.values() for point in one]
    if not points:
        return f"{heading}<p>nothing to show</p>"
    x_most = max(x for x, _ in points) or 1.0
    y_most = max([y for _, y in points] + ([line] if line is not None else [])) or 1.0
    drawn = "".join(
        _drawn(n, name, one, x_most, y_most, dots=dots)
        for n, (name, one) in enumerate(series.items())
    )
    level = ""
    if line is not None:
        y = _at(0.0, line, x_most, y_most)[1]
        level = f'<path d="M{_LEFT} {y}H{_WIDTH}" stroke="#c00" stroke-dasharray="4"/>'
    return (
        f'{heading}<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _RIGHT}" '
        f'height="{_HEIGHT + 45}" role="img" aria-label="{html.escape(title)}">'
        f"{_axes(x_most, y_most, x_unit)}{level}{drawn}</svg>"
    )


def _at(x: float, y: float, x_most: float, y_most: float) -> tuple[float, float]:
    return (
        round(_LEFT + (_WIDTH - _LEFT) * x / x_most, 1),
        round(_TOP + _HEIGHT * (1.0 - y / y_most), 1),
    )


def _axes(x_most: float, y_most: float, x_unit: str) -> str:
    bottom = _TOP + _HEIGHT
    out = f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH}" fill="none" stroke="#999"/>'
    for n in range(5):
        x, y = _at(x_most * n / 4, y_most * n / 4, x_most, y_most)
        out += f'<text x="{x - 8}" y="{bottom + 16}">{x_most * n / 4:.3g}</text>'
        out += f'<text x="0" y="{y + 4}">{y_most * n / 4:.3g}</text>'
    return out + f'<text x="{_LEFT}" y="{bottom + 34}">{html.escape(x_unit)}</text>'


def _drawn(
    n: int, name: str, points: Sequence[tuple[float, float]], x_most: float, y_most: float, *,
    dots: bool,
) -> str:  # fmt: skip
    colour = _COLOURS[n % len(_COLOURS)]
    places = [_at(x, y, x_most, y_most) for x, y in points]
    if dots:
        body = "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places)
    else:
        path = "L".join(f"{x} {y}" for x, y in places)
        body = f'<path d="M{path}" fill="none" stroke="{colour}"/>' if places else ""
    label = f'<text x="{_WIDTH + 12}" y="{_TOP + 12 + 18 * n}" fill="{colour}">'
    return f"{body}{label}{html.escape(name)}</text>"


def _steps(run: Run, field: str) -> list[tuple[float, float]]:
    """A field of the timeline as a staircase."""
    out: list[tuple[float, float]] = []
    for moment in run.timeline:
        value = float(getattr(moment, field))
        out += [(moment.at_s, value), (moment.at_s + moment.seconds, value)]
    return out


def _clock(model: BoardModel, run: Run, domain: int) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for moment in run.timeline:
        mhz = float(model.settings_SD[moment.setting, domain])
        out += [(moment.at_s, mhz), (moment.at_s + moment.seconds, mhz)]
    return out


def _deadlines(run: Run, jobs: Sequence[Job], *, first: bool) -> list[tuple[float, float]]:
    """(when the first token came, share of the goal used) for each request."""
    came_s = [m.at_s + m.seconds for m in run.timeline if m.phase == "prefill"]
    return [
        (
            at_s,
            served.ttft_ms / job.goals.ttft_ms if first else served.tpot_ms / job.goals.tpot_ms,
        )
        for at_s, served, job in zip(came_s, run.served, jobs, strict=True)
    ]


def _mean_ms(run: Run) -> float:
    """Mean milliseconds of a token after the first."""
    return float(np.mean([served.tpot_ms for served in run.served]))


def _pareto(told: Sequence[Told], fixed: Sequence[Run], bound: Optimum, *, n_jobs: int) -> str:
    """Latency against energy: the curve of fixed settings, and where the controllers are."""
    options = [
        Option(
            name=str(k), quality=0.0, latency_ms=_mean_ms(run), energy_j=run.energy_j / n_jobs,
            label="modelled",
        )
        for k, run in enumerate(fixed)
    ]  # fmt: skip
    curve = [(o.latency_ms or 0.0, o.energy_j or 0.0) for o in frontier(options)]
    series: dict[str, Sequence[tuple[float, float]]] = {"fixed settings": curve}
    series |= {t.name: [(_mean_ms(t.run), t.run.energy_j / n_jobs)] for t in told}
    return plot(
        "latency against energy: J a request (modelled); the dashed line is the optimum",
        "J", series, line=bound.energy_j / n_jobs, dots=True, x_unit="ms a token",
    )  # fmt: skip


def _table(told: Sequence[Told], bound: Optimum) -> str:
    heads = ("controller", "energy J, modelled", "late first tokens", "late tokens", "switches")
    rows = [
        (
            t.name, f"{t.run.energy_j:.2f}", f"{t.run.violation_ttft:.1%}",
            f"{t.run.violation_tpot:.1%}", str(t.run.switches),
        )
        for t in told
    ]  # fmt: skip
    rows.append(("optimum", f"{bound.energy_j:.2f}", "", "", ""))
    head = "".join(f"<th>{html.escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
