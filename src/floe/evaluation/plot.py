"""Figures as lines in a plot, in SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]
Point = tuple[float, float]
_WIDTH, _HEIGHT, _LEFT, _TOP = 480, 220, 56, 12
_COLOURS = ("#3a6ea5", "#b5482a", "#4d8b4a", "#7a5ba6", "#777777")


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Series over one axis: a label and the points' fields, x a number or a field itself."""

    title: str
    unit: str
    x_unit: str
    series: tuple[tuple[str, tuple[tuple[float | str, str], ...]], ...]

    def svg(self, figures: Figures) -> str:
        """The plot, with a dot for each value; points that were not measured are left out."""
        known = [(label, _points(points, figures)) for label, points in self.series]
        known = [(label, points) for label, points in known if points]
        heading = f"<h2>{html.escape(self.title)}, {html.escape(self.unit)}</h2>"
        if not known:
            return f"{heading}<p>not measured</p>"
        x_most = max(x for _, points in known for x, _ in points) or 1.0
        y_most = max(y for _, points in known for _, y in points) or 1.0
        lines = "".join(
            _line(n, label, points, x_most, y_most) for n, (label, points) in enumerate(known)
        )
        return (
            f'{heading}<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 240}" '
            f'height="{_HEIGHT + 50}" role="img" aria-label="{html.escape(self.title)}">'
            f"{_axes(x_most, y_most, self.x_unit)}{lines}</svg>"
        )


def _points(points: Sequence[tuple[float | str, str]], figures: Figures) -> list[Point]:
    found = ((figures.get(x) if isinstance(x, str) else x, figures.get(y)) for x, y in points)
    return sorted((float(x), float(y)) for x, y in found if x is not None and y is not None)


def _place(x: float, y: float, x_most: float, y_most: float) -> tuple[float, float]:
    return (
        round(_LEFT + (_WIDTH - _LEFT) * x / x_most, 1),
        round(_TOP + _HEIGHT * (1.0 - max(y, 0.0) / y_most), 1),
    )


def _axes(x_most: float, y_most: float, x_unit: str) -> str:
    bottom = _TOP + _HEIGHT
    frame = (
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH}" fill="none" stroke="#999"/>'
        f'<text x="{_LEFT}" y="{bottom + 38}">{html.escape(x_unit)}</text>'
    )
    ticks = ""
    for n in range(5):
        x, y = _place(x_most * n / 4, y_most * n / 4, x_most, y_most)
        ticks += f'<text x="{x - 8}" y="{bottom + 18}">{x_most * n / 4:.3g}</text>'
        ticks += f'<text x="0" y="{y + 4}">{y_most * n / 4:.3g}</text>'
    return frame + ticks


def _line(n: int, label: str, points: Sequence[Point], x_most: float, y_most: float) -> str:
    colour = _COLOURS[n % len(_COLOURS)]
    places = [_place(x, y, x_most, y_most) for x, y in points]
    path = "L".join(f"{x} {y}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{html.escape(label)}: {v:.4g}'
        "</title></circle>"
        for (x, y), (_, v) in zip(places, points, strict=True)
    )
    return (
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'
        f'<text x="{_WIDTH + 16}" y="{_TOP + 14 + 20 * n}" fill="{colour}">'
        f"{html.escape(label)}</text>"
    )
