"""`floe fed plan` and `floe fed train`: what this device can carry, and training on it alone."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say

if TYPE_CHECKING:
    from floe.core.config import Config
    from floe.federated.conditions import Conditions
    from floe.federated.plan import RankRow
    from floe.federated.settings import StepReport, TrainSettings

BaseOption = Annotated[
    str | None,
    typer.Option(help="A Hugging Face folder to train for; default: federated.base, else model."),
]
_CHECKPOINT_STEPS = 5


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
    a line through them gives the others.

    Example: floe fed plan --step-s 10
    """
    learning = _learning()
    from floe.core.config import home
    from floe.federated.on_torch.base_model import base_shapes
    from floe.federated.on_torch.measure import Workload, measure_rank
    from floe.federated.plan import Limits, free_bytes, largest_fitting, preset_rank, rank_table
    from floe.federated.settings import TARGETS

    settings = read_config(config, model=model)
    fed = settings.federated
    chosen = _ranks(ranks) if ranks else sorted(set(fed.ranks))
    free = free_bytes() if memory_mb is None else None
    limits = Limits(
        memory_bytes=free if memory_mb is None else round(memory_mb * 1e6),
        step_s=step_s if step_s is not None else fed.step_limit_ms / 1e3 or None,
    )
    with progress_bar(quiet=as_json) as progress:
        place = learning.find_base(_base(base, settings), home=home(), progress=progress)
    work = Workload(
        folder=place.folder, targets=TARGETS, batch=batch or fed.batch, tokens=tokens,
        answer_tokens=max(1, tokens // 4), steps=1 if quick else 5,
    )  # fmt: skip
    ends = sorted({chosen[0], chosen[-1] if len(chosen) > 1 else 2 * chosen[0]})
    measured = []
    for rank in ends:
        say(f"floe: training {work.steps + 1} steps at rank {rank}")
        measured.append(measure_rank(work, rank))
    table = rank_table(base_shapes(place.folder, TARGETS), measured, limits=limits, ranks=chosen)
    fitting = [r for r in table if r.fits]
    best = largest_fitting(table).rank if fitting else None
    preset = None if free is None else preset_rank(free)
    if as_json:
        rows = [{**dataclasses.asdict(r), "fits": r.fits} for r in table]
        facts = {"base": place.name, "rank": best, "preset_rank": preset}
        print(json.dumps({**facts, "limits": dataclasses.asdict(limits), "rows": rows}))
    else:
        _show(table, best=best, preset=preset, limits_text=_limits_text(limits))
    largest_fitting(table)


def train(
    data: Annotated[Path, typer.Argument(help="Examples as JSON lines: prompt and answer.")],
    out: Annotated[Path, typer.Option(help="The PEFT folder to write.")],
    rank: Annotated[
        int | None, typer.Option(help="Default: by free memory; `floe fed plan` measures.", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Default: federated.steps.", min=1)] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Default: federated.learning_rate.")
    ] = None,
    validation_share: Annotated[
        float, typer.Option(help="Of the prompts, to judge by; never trained on.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same adapter.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    min_battery: Annotated[
        float | None, typer.Option(help="Wait below this charge, in percent.")
    ] = None,
    on_mains: Annotated[bool, typer.Option("--on-mains", help="Wait while on battery.")] = False,
    max_celsius: Annotated[
        float | None, typer.Option(help="Wait while the device is hotter.")
    ] = None,
    max_load: Annotated[
        float | None, typer.Option(help="Wait while others load a core more than this.")
    ] = None,
    patience_s: Annotated[float, typer.Option(help="How long to wait before stopping.")] = 600.0,
    base: BaseOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an adapter on this device's own examples; `floe adapters add` takes the folder.

    Nothing leaves the device. Stopped half-way, by a kill too, it goes on with --resume.

    Example: floe fed train examples.jsonl --out ./my-adapter
    """
    learning = _learning()
    from floe.core.config import home
    from floe.core.errors import BadRequest
    from floe.federated.checkpoints import Checkpoints
    from floe.federated.conditions import Conditions, Limits
    from floe.federated.examples import read_examples, split_examples
    from floe.federated.on_torch.train import LoraTrainer
    from floe.federated.peft_folder import CONFIG, write_peft_folder
    from floe.federated.plan import free_bytes, preset_rank

    if (out / CONFIG).exists():
        raise BadRequest(f"{out} holds an adapter already; name another folder", param="out")
    checkpoints = Checkpoints(out, every_steps=_CHECKPOINT_STEPS, strict=True)
    if checkpoints.path.exists() and not resume:
        raise BadRequest(
            f"a training run stopped in {out}: go on with --resume, or delete "
            f"{checkpoints.path} to begin anew",
            param="resume",
        )
    settings = read_config(config, model=model)
    chosen = rank or preset_rank(free_bytes())
    split = split_examples(read_examples(data), validation_share=validation_share)
    with progress_bar(quiet=as_json) as progress:
        opened = learning.open_base(_base(base, settings), home=home(), progress=progress)
    limits = Limits(
        min_battery_percent=min_battery, on_mains=on_mains, max_celsius=max_celsius,
        max_load=max_load,
    )  # fmt: skip
    with _steps_shown(quiet=as_json) as told:
        trainer = LoraTrainer.of_examples(
            opened,
            split,
            settings=_train_settings(settings, steps=steps, learning_rate=learning_rate),
            checkpoints=checkpoints,
            conditions=_conditions(Conditions(limits=limits, patience_s=patience_s)),
            progress=told,
        )
        before = trainer.loss(None)
        update = trainer.fit(None, rank=chosen, seed=seed)
        after = trainer.loss(update.state)
    facts = {
        "rank": chosen,
        "steps": trainer.settings.steps,
        "train_examples": len(trainer.train),
        "validation_examples": len(trainer.validation),
        "left_out_too_long": len(split.train) + len(split.validation)
        - len(trainer.train) - len(trainer.validation),
        "loss_before": round(before, 4),
        "loss_after": round(after, 4),
        "step_s": round(update.metrics["step_s"], 3),
    }  # fmt: skip
    write_peft_folder(update.state, out, opened.name, facts=facts)
    checkpoints.clear()
    if as_json:
        print(json.dumps({"out": str(out), **facts}))
        return
    print(
        f"wrote {out}: rank {chosen}, {facts['train_examples']} examples; loss on "
        f"{facts['validation_examples']} others {before:.3f} -> {after:.3f}"
    )
    if after >= before:
        say("floe: the loss did not fall: more examples, more steps or another rate may help")


def _learning() -> Any:
    from floe.core.errors import Missing

    try:
        from floe.assemble import learning
    except ModuleNotFoundError as error:
        raise Missing(
            f"training needs {error.name}: install it with pip install 'floe[train]'"
        ) from error
    return learning


def _base(base: str | None, settings: Config) -> str:
    return base or settings.federated.base or settings.model.name


def _ranks(text: str) -> list[int]:
    from floe.core.errors import BadRequest

    try:
        ranks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadRequest("--ranks must be numbers with commas, as 4,8,16", param="ranks") from None
    if ranks[0] < 1:
        raise BadRequest("--ranks must be 1 or more", param="ranks")
    return ranks


def _train_settings(
    settings: Config, *, steps: int | None, learning_rate: float | None
) -> TrainSettings:
    from floe.federated.settings import TrainSettings

    fed = settings.federated
    return TrainSettings(
        steps=steps or fed.steps,
        batch=fed.batch,
        accumulate=fed.accumulate,
        learning_rate=learning_rate or fed.learning_rate,
        max_tokens=fed.max_tokens,
    )


def _conditions(conditions: Conditions) -> Conditions:
    """The same, told before the base is used that training may not begin yet."""
    if (reason := conditions.obstacle()) is not None:
        say(f"floe: waiting: {reason}")
    return conditions


def _limits_text(limits: Any) -> str:
    memory, step_s = limits.memory_bytes, limits.step_s
    parts = [] if memory is None else [f"{memory / 1e6:.0f} MB"]
    parts += [] if step_s is None else [f"{step_s:g} s a step"]
    return " and ".join(parts) or "none"


def _show(
    table: tuple[RankRow, ...], *, best: int | None, preset: int | None, limits_text: str
) -> None:
    print("rank  adapter MB  training MB  step s  how       fits")
    for r in table:
        fits = "yes" if r.fits else f"no: {r.obstacle}"
        print(
            f"{r.rank:>4}  {r.adapter_bytes / 1e6:>10.1f}  {r.memory_bytes / 1e6:>11.0f}  "
            f"{r.step_s:>6.2f}  {r.source:<8}  {fits}"
        )
    print(f"limits: {limits_text}")
    if best is not None:
        rule = "" if preset is None else f" (rule of thumb by free memory: {preset})"
        print(f"rank {best}{rule}")


@contextmanager
def _steps_shown(*, quiet: bool) -> Iterator[Callable[[StepReport], None]]:
    """A bar on a terminal, else a line for each tenth of the steps."""

    def line(r: StepReport) -> str:
        if r.paused:
            return f"waiting: {r.paused}"
        loss = "" if r.loss is None else f" loss {r.loss:.3f}"
        return f"step {r.step} of {r.steps}{loss}"

    def in_tenths(r: StepReport) -> None:
        if r.paused or r.step % max(1, r.steps // 10) == 0 or r.step == r.steps:
            say(f"floe: {line(r)}")

    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield in_tenths
    else:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("training", total=None)
            yield lambda r: bars.update(task, completed=r.step, total=r.steps, description=line(r))
