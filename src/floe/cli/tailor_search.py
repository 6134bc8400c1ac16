"""`floe tailor search`: the best plan for a device that a search finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, read_config, say

if TYPE_CHECKING:
    from floe.tailoring.base import CostModel
    from floe.tailoring.genes import Choices
    from floe.tailoring.profile import DeviceProfile
    from floe.tailoring.run import Found, OnStep, Step
    from floe.tailoring.space import Space

_MB = 1_000_000


def search(
    config: ConfigOption = None,
    model: ModelOption = None,
    profile: Annotated[
        Path, typer.Option(help="The device's profile, from floe tailor profile.")
    ] = Path("device_profile.json"),
    folder: Annotated[
        Path | None,
        typer.Option(help="The model as a Hugging Face folder; default: made from the GGUF, once."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="generative, evolutionary, tpe, random, uniform or flap.")
    ] = "evolutionary",
    evaluations: Annotated[int, typer.Option(min=1, help="Plans judged, seeds among them.")] = 40,
    seed: Annotated[int, typer.Option(help="The same seed finds the same plan.")] = 0,
    memory_mb: Annotated[
        float | None, typer.Option(min=0, help="Weights, cache and adapters; 1 MB = 10^6 bytes.")
    ] = None,
    latency_ms: Annotated[float | None, typer.Option(min=0, help="Milliseconds a token.")] = None,
    latency_ratio: Annotated[
        float | None, typer.Option(min=0, max=1, help="The same as a share of the uncut model's.")
    ] = None,
    prefill_ms: Annotated[
        float | None, typer.Option(min=0, help="For the profile's prompt.")
    ] = None,
    energy_mj: Annotated[float | None, typer.Option(min=0, help="Millijoules a token.")] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens the cache must hold.")] = 2048,
    adapters: Annotated[int, typer.Option(min=0, help="Adapters held in memory.")] = 0,
    quants: Annotated[
        str, typer.Option(help="Types to choose from, fewest bits first: Q4_0,Q5_1,Q8_0.")
    ] = "",
    include: Annotated[
        list[str] | None, typer.Option(help="Cut only these: layers.4-20.ffn; again for more.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Never cut these.")] = None,
    importances: Annotated[
        str, typer.Option(help="Criteria to choose from: flap, taylor, wanda-sp, magnitude.")
    ] = "flap",
    text: Annotated[
        Path | None, typer.Option(help="Calibration text; default: a sample of WikiText-2.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the plan.")] = Path(
        "plan.json"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the trials beside the plan's file.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the best so far as HTML.")] = None,
    any_board: Annotated[bool, typer.Option(help="Take a profile of another board.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Search for the plan with the least perplexity inside the device's limits.

    Example: floe tailor search --latency-ratio 0.65 --evaluations 40 --out plan.json
    """
    from floe.tailoring.base import Budgets, refuse_unlimited
    from floe.tailoring.memory import Room
    from floe.tailoring.plan_file import PlanFile, write_plan
    from floe.tailoring.rules import Rules
    from floe.tailoring.search.make import check_search
    from floe.tailoring.space import Space

    check_search(method)
    device = _profile(profile, any_board=any_board)
    room = Room(context_tokens=context, adapters=adapters)
    costs = device.costs(room=room)
    budgets = Budgets(
        memory_bytes=_bytes(memory_mb, device.limits.memory_budget_mb),
        decode_ms=_decode_ms(device, costs, latency_ms, latency_ratio),
        prefill_ms=prefill_ms,
        energy_mj=energy_mj,
    )
    refuse_unlimited(budgets)
    rules = Rules(include=tuple(include or ()), exclude=tuple(exclude or ()))
    space = Space(
        shape=device.shape, cost=costs, budgets=budgets, rules=rules, room=room,
        choices=_choices(_listed(importances), _listed(quants), device.shape.tied_embeddings),
    )  # fmt: skip
    trials = out.with_suffix(".trials.jsonl")
    if not resume:
        _lay_aside(trials)
    found = _found(
        method, device, space, folder or _folder(config, model), _text(text), seed=seed,
        evaluations=evaluations, trials=trials,
    )  # fmt: skip
    write_plan(out, PlanFile(plan=found.best.plan, budgets=budgets, rules=rules))
    if plot is not None:
        _write_plot(plot, found)
    _print(found, out, as_json=as_json)


def _lay_aside(trials: Path) -> None:
    """Evaluations of an earlier search are minutes of work: they are kept, and it is said."""
    if trials.is_file():
        kept = trials.with_suffix(".old.jsonl")
        trials.replace(kept)
        say(f"floe: starting anew, not with --resume; the earlier trials are kept in {kept}")


def _found(
    method: str, device: DeviceProfile, space: Space, folder: Path, text: str, *, seed: int,
    evaluations: int, trials: Path,
) -> Found:  # fmt: skip
    """What the search came to; its trials are in `trials`."""
    from floe.tailoring.on_torch.importance import check_importance
    from floe.tailoring.on_torch.opened import open_quality
    from floe.tailoring.records import Records
    from floe.tailoring.run import run_search
    from floe.tailoring.search.make import make_search
    from floe.tailoring.search.seeds import heuristic_seeds

    for name in space.choices.importances:
        check_importance(name)
    say("floe: measuring which heads and channels matter")
    criteria = (*space.choices.importances, "flap", "taylor", "block-influence")
    opened = open_quality(
        folder, text, shape=device.shape, seed=seed, criteria=tuple(dict.fromkeys(criteria))
    )
    measured = opened.quality.importances
    label = _label(method, seed, device, space, opened.statistics.loss)
    with Records(trials, label=label) as records, _steps(evaluations) as on_step:
        return run_search(
            make_search(
                method, space=space, seed=seed, importances=measured["flap"],
                seeds=() if method == "random" else heuristic_seeds(space, measured),
            ),
            space=space, quality=opened.quality, n_evaluations=evaluations, records=records,
            on_step=on_step,
        )  # fmt: skip


def _profile(path: Path, *, any_board: bool) -> DeviceProfile:
    from floe.assemble.tailored import this_board
    from floe.tailoring.profile_file import read_profile

    return read_profile(path, here=this_board(), any_board=any_board)


def _folder(config: Path | None, model: str | None) -> Path:
    from floe.assemble.originals import open_original
    from floe.core.config import home

    settings = read_config(config, model=model)
    say("floe: making a Hugging Face folder of the model, once (a minute)")
    return open_original(settings.model.name, home=home()).folder


def _text(path: Path | None) -> str:
    from floe.tailoring.text import read_text, sample_text

    return sample_text() if path is None else read_text(path)


def _choices(criteria: list[str], quants: list[str], tied: bool) -> Choices:
    from floe.tailoring.genes import Choices

    groups = ("embedding", "attention", "ffn") if tied else (
        "embedding", "attention", "ffn", "output",
    )  # fmt: skip
    return Choices(
        quants={group: tuple(quants) for group in groups} if quants else {},
        importances=tuple(criteria),
    )


def _decode_ms(
    device: DeviceProfile, costs: CostModel, latency_ms: float | None, ratio: float | None
) -> float | None:
    """The tighter of both; without either, the profile's goal.

    A ratio is of the uncut model in F16.
    """
    from floe.tailoring.shapes import whole_plan

    asked = [latency_ms] if latency_ms is not None else []
    if ratio is not None:
        asked.append(costs.cost(whole_plan(device.shape)).decode_ms * ratio)
    return min(asked) if asked else device.limits.latency_slo_ms


def _bytes(asked_mb: float | None, profile_mb: float | None) -> int | None:
    found = profile_mb if asked_mb is None else asked_mb
    return None if found is None else round(found * _MB)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _label(
    method: str, seed: int, device: DeviceProfile, space: Space, loss: float
) -> dict[str, str | int | float | None]:
    import hashlib
    from dataclasses import asdict

    told = json.dumps([asdict(g) for g in space.genes], sort_keys=True)
    costs = json.dumps(dict(device.table.decode), sort_keys=True)
    return {
        "search": method,
        "seed": seed,
        "base_digest": device.shape.base_digest,
        "space": hashlib.sha256((told + costs).encode()).hexdigest(),
        "calibration_loss": loss,
        **asdict(space.budgets),
    }


@contextmanager
def _steps(total: int) -> Iterator[OnStep]:
    """A bar with the best so far on a terminal, else a line for each evaluation."""

    def line(step: Step) -> str:
        kept = " (kept)" if step.is_replayed else ""
        return (
            f"{step.done} of {step.total}: perplexity {step.trial.perplexity:.1f}, "
            f"best {step.best.perplexity:.1f}{kept}"
        )

    if not sys.stderr.isatty():
        yield lambda step: say(f"floe: {line(step)}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("searching", total=total)
        yield lambda step: bars.update(bar, completed=step.done, description=line(step))


def _write_plot(path: Path, found: Found) -> None:
    """The best perplexity after each evaluation."""
    from floe.core.files import atomic_write
    from floe.evaluation.plot import Lines

    figures = {f"p{n}": value for n, value in enumerate(found.curve, 1)}
    lines = Lines(
        title=f"Best so far, {found.name}",
        unit="perplexity on calibration text",
        x_unit="evaluations",
        series=((found.name, tuple((float(n), f"p{n}") for n in range(1, len(figures) + 1))),),
    )
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>floe tailor search</title></head><body>{lines.svg(figures)}</body></html>\n"
    )
    with atomic_write(path) as file:
        file.write(page.encode())


def _print(found: Found, out: Path, *, as_json: bool) -> None:
    best = found.best
    figures = {
        "plan": str(out),
        "search": found.name,
        "evaluations": len(found.trials),
        "kept_evaluations": found.n_replayed,
        "perplexity": best.perplexity,
        "score": best.score,
        "decode_ms": best.cost.decode_ms,
        "prefill_ms": best.cost.prefill_ms,
        "memory_mb": best.cost.memory_bytes / _MB,
        "energy_mj": best.cost.energy_mj,
        "cost_source": best.cost.source,
        "budget_violations": found.budget_violations,
    }
    if as_json:
        print(json.dumps(figures))
        return
    print(
        f"perplexity {best.perplexity:.1f} without recovery, by the {best.cost.source}: "
        f"{best.cost.decode_ms:.2f} ms a token, {best.cost.memory_bytes / _MB:.1f} MB"
    )
    say(f"wrote {out}")
