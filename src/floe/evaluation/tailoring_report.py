"""A page about a tailored model: what stays of each layer, the trials, before and after."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floe.core.files import atomic_write
from floe.tailoring.manifest import Manifest, read_manifest
from floe.tailoring.plan import LayerPlan
from floe.tailoring.plan_file import read_plan

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;"
    "text-align:left;border-bottom:1px solid #ddd}h2{font-size:1.05em;margin-top:1.6em}"
    "svg text{font-size:12px;fill:#222}"
)
_ROW, _WIDE, _LEFT = 16, 260, 70
Point = tuple[float, float]


def write_report(folder: Path, target: Path) -> Path:
    """Write the page of the tailored model in `folder`; it needs nothing from outside.

    Trials are shown where `plan.trials.jsonl` lies in the folder.

    Raises:
        BadPlan: no manifest, or a damaged one.
    """
    manifest = read_manifest(folder / "manifest.json", here=None)
    budgets = read_plan(folder / "plan.json").budgets
    trials = read_trials(folder / "plan.trials.jsonl")
    with atomic_write(target) as file:
        file.write(page(manifest, trials, {"decode_ms": budgets.decode_ms}).encode())
    return target


def read_trials(path: Path) -> list[dict[str, float]]:
    """Cost and perplexity of each trial; empty where there is no such file."""
    if not path.is_file():
        return []
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("perplexity") is not None:
            out.append({"perplexity": record["perplexity"], **record["cost"]})
    return out


def page(
    manifest: Manifest, trials: Sequence[dict[str, Any]], budgets: dict[str, float | None]
) -> str:
    """The page as well-formed XHTML text."""
    plots = "".join(
        _pareto(trials, key, unit)
        for key, unit in (("decode_ms", "ms a token"), ("memory_bytes", "bytes"))
    )
    title = f"Tailored model {manifest.name}"
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head>'
        f'<meta charset="utf-8"/><title>{_text(title)}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{_text(title)}</h1><p>{_text(_about(manifest))}</p>"
        f"<h2>Before and after</h2>{_table(manifest, budgets)}"
        f"<h2>What stays of each layer</h2>{_layers(manifest.plan.layers)}"
        f"{plots}<h2>Types</h2><p>{_text(_types(manifest))}</p></body></html>\n"
    )


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, by rising x."""
    best, out = math.inf, []
    for x, y in sorted(points):
        if y < best:
            best = y
            out.append((x, y))
    return out


def _about(manifest: Manifest) -> str:
    board = manifest.board
    return (
        f"Cut from {manifest.base_names[0]} by {manifest.plan.importance}, plan by "
        f"{manifest.made_by or 'hand'}; for {board.machine.get('cpu', 'unknown')}, {board.engine}."
    )


def _table(manifest: Manifest, budgets: dict[str, float | None]) -> str:
    facts, cost = manifest.facts, manifest.cost
    rows: list[tuple[str, Any]] = [
        ("perplexity of the original", manifest.perplexity_before),
        ("after pruning", facts.get("perplexity_pruned")),
        ("after recovery", facts.get("perplexity_recovered")),
        ("as built, quantized", manifest.perplexity_after),
        (f"milliseconds a token ({cost.source})", cost.decode_ms),
        ("budget of the plan, by its table", budgets.get("decode_ms")),
        ("milliseconds for a prompt of 64 tokens", cost.prefill_ms),
        ("megabytes: weights, cache, adapters", cost.memory_bytes / 1e6),
        ("largest difference of both forms' log-probabilities", facts.get("logit_max_error")),
        ("adapters carried over", ", ".join(manifest.adapters) or "none"),
    ]
    cells = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(_shown(value))}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def _layers(layers: Sequence[LayerPlan]) -> str:
    heads = max(max(p.n_kv_heads * p.q_per_kv for p in layers), 1)
    ffn = max(max(p.n_ffn for p in layers), 1)
    bars = ""
    for i, part in enumerate(layers):
        kept = part.n_kv_heads * part.q_per_kv
        y = _ROW * (i + 1)
        bars += f'<text x="0" y="{y + 12}">layer {i}</text>'
        for n, (share, label, colour) in enumerate(
            ((kept / heads, f"{kept} heads", "#3a6ea5"), (part.n_ffn / ffn, part.n_ffn, "#4d8b4a"))
        ):
            x = _LEFT + n * (_WIDE + 90)
            bars += (
                f'<rect x="{x}" y="{y + 2}" width="{round(_WIDE * share)}" height="12" '
                f'fill="{colour}"/><text x="{x + round(_WIDE * share) + 6}" y="{y + 12}">'
                f"{label}</text>"
            )
    names = f'<text x="{_LEFT}" y="12">query heads</text>' + (
        f'<text x="{_LEFT + _WIDE + 90}" y="12">FFN channels</text>'
    )
    height = _ROW * (len(layers) + 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" role="img" '
        f'aria-label="What stays of each layer">{names}{bars}</svg>'
    )


def _pareto(trials: Sequence[dict[str, Any]], key: str, unit: str) -> str:
    points = [(float(t[key]), float(t["perplexity"])) for t in trials]
    heading = f"<h2>Perplexity against {_text(unit)}, every trial</h2>"
    if not points:
        return f"{heading}<p>no trials beside this model</p>"
    xs, ys = [x for x, _ in points], [math.log(y) for _, y in points]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - min(xs)) / ((max(xs) - min(xs)) or 1.0)
        up = (math.log(y) - min(ys)) / ((max(ys) - min(ys)) or 1.0)
        return round(70 + 480 * across, 1), round(212 - 200 * up, 1)

    dots = "".join(
        f'<circle cx="{px}" cy="{py}" r="3" fill="#3a6ea5" fill-opacity=".5"><title>{x:.4g} '
        f"{_text(unit)}, perplexity {y:.4g}</title></circle>"
        for x, y in points
        for px, py in [place(x, y)]
    )
    front = "L".join("{} {}".format(*place(x, y)) for x, y in pareto(points))
    ticks = (
        f'<text x="0" y="16">{math.exp(max(ys)):.4g}</text>'
        f'<text x="0" y="214">{math.exp(min(ys)):.4g}</text>'
        f'<text x="66" y="232">{min(xs):.4g}</text><text x="520" y="232">{max(xs):.4g}</text>'
    )
    return (
        f'{heading}<svg xmlns="http://www.w3.org/2000/svg" width="640" height="240" role="img" '
        f'aria-label="Trials, {_text(unit)}">{ticks}<path d="M{front}" fill="none" '
        f'stroke="#b5482a" stroke-width="2"/>{dots}</svg>'
    )


def _types(manifest: Manifest) -> str:
    return ", ".join(f"{g} {t}" for g, t in sorted(manifest.plan.quants.items())) or "as before"


def _shown(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(value: str) -> str:
    return html.escape(value, quote=True)
