"""`floe fed plan`: the rank that this device can train."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say
from floe.cli.fed_common import BaseOption, base_name, learning, plan_file

if TYPE_CHECKING:
    from floe.federated.plan import Limits, RankRow


def plan(
    memory_mb: Annotated[
        float | None, typer.Option(help="What training may hold; default: what is free now.")
    ] = None,
    step_s: Annotated[
        float | None, typer.Option(help="What a step may take; default: federated.step_limit_ms.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Ranks to choose from, as 4,8,16; default: federated.ranks.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of an example.", min=2)] = 128,
    batch: Annotated[
        int | None, typer.Option(help="Examples at once; default: federated.batch.", min=1)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One timed step a rank, not five.")
    ] = False,
    base: BaseOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """The rank that this device can train: memory and step time, measured here.

    The smallest and the largest rank are trained for a few steps, each in a process of its own;
    a line through them gives the others. `floe fed join` goes by it.

    Example: floe fed plan --step-s 10
    """
    opened = learning()
    from floe.core.config import home
    from floe.federated.plan import (
        Limits,
        free_bytes,
        keep_table,
        largest_fitting,
        preset_rank,
    )

    settings = read_config(config, model=model)
    fed = settings.federated
    chosen = _ranks(ranks) if ranks else sorted(set(fed.ranks))
    free = free_bytes() if memory_mb is None else None
    limits = Limits(
        memory_bytes=free if memory_mb is None else memory_mb * 1e6,
        step_s=step_s if step_s is not None else fed.step_limit_ms / 1e3 or None,
    )
    with progress_bar(quiet=as_json) as progress:
        place = opened.find_base(base_name(base, settings), home=home(), progress=progress)
    table = _measured(
        place.folder, chosen, limits=limits, batch=batch or fed.batch, tokens=tokens,
        steps=1 if quick else 5,
    )  # fmt: skip
    keep_table(plan_file(), base_name(base, settings), table)
    best = largest_fitting(table).rank if any(r.fits for r in table) else None
    preset = None if free is None else preset_rank(free)
    if as_json:
        rows = [{**dataclasses.asdict(r), "fits": r.fits} for r in table]
        facts = {"base": place.name, "rank": best, "preset_rank": preset}
        print(json.dumps({**facts, "limits": dataclasses.asdict(limits), "rows": rows}))
    else:
        _show(table, best=best, preset=preset, limits=limits)
    largest_fitting(table)  # says what is missing where nothing fits


def _measured(
    folder: Path, ranks: Sequence[int], *, limits: Limits, batch: int, tokens: int, steps: int
) -> tuple[RankRow, ...]:
    """The table: both ends run here, each in its own process; of one rank, its double too."""
    from floe.federated.on_torch.base_model import base_shapes
    from floe.federated.on_torch.measure import Workload, measure_rank
    from floe.federated.plan import rank_table
    from floe.federated.settings import TARGETS

    work = Workload(
        folder=folder, targets=TARGETS, batch=batch, tokens=tokens,
        answer_tokens=max(1, tokens // 4), steps=steps,
    )  # fmt: skip
    measured = []
    for rank in (ranks[0], ranks[-1] if len(ranks) > 1 else 2 * ranks[0]):
        say(f"floe: training {steps + 1} steps at rank {rank}")
        measured.append(measure_rank(work, rank))
    return rank_table(base_shapes(folder, TARGETS), measured, limits=limits, ranks=ranks)


def _ranks(text: str) -> list[int]:
    from floe.core.errors import BadRequest

    try:
        ranks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadRequest("--ranks must be numbers with commas, as 4,8,16", param="ranks") from None
    if ranks[0] < 1:
        raise BadRequest("--ranks must be 1 or more", param="ranks")
    return ranks


def _show(
    table: Sequence[RankRow], *, best: int | None, preset: int | None, limits: Limits
) -> None:
    print("rank  adapter MB  training MB  step s  how       fits")
    for r in table:
        fits = "yes" if r.fits else f"no: {r.obstacle}"
        print(
            f"{r.rank:>4}  {r.adapter_bytes / 1e6:>10.1f}  {r.memory_bytes / 1e6:>11.0f}  "
            f"{r.step_s:>6.2f}  {r.source:<8}  {fits}"
        )
    parts = [] if limits.memory_bytes is None else [f"{limits.memory_bytes / 1e6:.0f} MB"]
    parts += [] if limits.step_s is None else [f"{limits.step_s:g} s a step"]
    print(f"limits: {' and '.join(parts) or 'none'}")
    if best is not None:
        rule = "" if preset is None else f" (rule of thumb by free memory: {preset})"
        print(f"rank {best}{rule}")
