"""`floe fed train`: an adapter from this device's own examples; nothing leaves it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say
from floe.cli.fed_common import BaseOption, base_name, learning

if TYPE_CHECKING:
    from floe.core.config import Config
    from floe.federated.checkpoints import Checkpoints
    from floe.federated.conditions import Conditions
    from floe.federated.settings import StepReport, TrainSettings

_CHECKPOINT_STEPS = 5


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
    opened = learning()
    from floe.core.config import home
    from floe.federated.conditions import Conditions, Limits
    from floe.federated.examples import read_examples, split_examples
    from floe.federated.on_torch.train import LoraTrainer
    from floe.federated.plan import free_bytes, preset_rank

    checkpoints = _checkpoints(out, resume=resume)
    settings = read_config(config, model=model)
    chosen = rank or preset_rank(free_bytes())
    split = split_examples(read_examples(data), validation_share=validation_share)
    _make_folder(out)
    limits = Limits(
        min_battery_percent=min_battery, on_mains=on_mains, max_celsius=max_celsius,
        max_load=max_load,
    )  # fmt: skip
    conditions = _told(Conditions(limits=limits, patience_s=patience_s))
    with progress_bar(quiet=as_json) as progress:
        base_model = opened.open_base(base_name(base, settings), home=home(), progress=progress)
    _check_rank(chosen, base_model.folder)
    with _steps_shown(quiet=as_json) as shown:
        trainer = LoraTrainer.of_examples(
            base_model, split, checkpoints=checkpoints, conditions=conditions, progress=shown,
            settings=_train_settings(settings, steps=steps, learning_rate=learning_rate),
        )  # fmt: skip
        facts = _trained(trainer, out, rank=chosen, seed=seed, n_examples=split.size)
    checkpoints.clear()
    if as_json:
        print(json.dumps({"out": str(out), **facts}))
        return
    print(
        f"wrote {out}: rank {chosen}, {facts['train_examples']} examples; loss on "
        f"{facts['validation_examples']} others {facts['loss_before']:.3f} -> "
        f"{facts['loss_after']:.3f}"
    )
    if facts["loss_after"] >= facts["loss_before"]:
        say("floe: the loss did not fall: more examples, more steps or another rate may help")


def _make_folder(out: Path) -> None:
    """Make it before hours are spent. Raises BadRequest where nothing can be written there."""
    from floe.core.errors import BadRequest

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"cannot make the folder {out}: {error.strerror}", param="out") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadRequest(f"nothing can be written to {out}; name another folder", param="out")


def _check_rank(rank: int, folder: Path) -> None:
    """Raise BadRequest for a rank above the inputs of the smallest layer."""
    from floe.core.errors import BadRequest
    from floe.federated.on_torch.base_model import base_shapes
    from floe.federated.settings import TARGETS

    most = min(n_inputs for _, n_inputs in base_shapes(folder, TARGETS).values())
    if rank > most:
        raise BadRequest(f"rank {rank} is above {most}, a layer's inputs", param="rank")


def _trained(trainer: Any, out: Path, *, rank: int, seed: int, n_examples: int) -> dict[str, Any]:
    """Train, write the folder, and say what is in its card.json: numbers, never text."""
    from floe.core.errors import FloeError
    from floe.federated.peft_folder import write_peft_folder

    before = trainer.loss(None)
    update = trainer.fit(None, rank=rank, seed=seed)
    after = trainer.loss(update.state)
    if not math.isfinite(after):
        raise FloeError(
            "the training ran away: the loss on other examples is not a number. Nothing was "
            "written; try a lower --learning-rate"
        )
    train, validation = len(trainer.train), len(trainer.validation)
    facts = {
        "rank": rank,
        "steps": trainer.settings.steps,
        "train_examples": train,
        "validation_examples": validation,
        "left_out_too_long": n_examples - train - validation,
        "loss_before": round(before, 4),
        "loss_after": round(after, 4),
        "step_s": round(update.metrics["step_s"], 3),
    }
    write_peft_folder(update.state, out, trainer.base.name, facts=facts)
    return facts


def _checkpoints(out: Path, *, resume: bool) -> Checkpoints:
    """Where the run in `out` is kept.

    Raises:
        BadRequest: an adapter is there, or a stopped run that nobody said to resume.
    """
    from floe.core.errors import BadRequest
    from floe.federated.checkpoints import Checkpoints
    from floe.federated.peft_folder import CONFIG

    if (out / CONFIG).exists():
        raise BadRequest(f"{out} holds an adapter already; name another folder", param="out")
    kept = Checkpoints(out, every_steps=_CHECKPOINT_STEPS, strict=True)
    if kept.path.exists() and not resume:
        raise BadRequest(
            f"a training run stopped in {out}: go on with --resume, or delete {kept.path} to "
            "begin anew",
            param="resume",
        )
    return kept


def _train_settings(
    settings: Config, *, steps: int | None, learning_rate: float | None
) -> TrainSettings:
    from floe.federated.settings import TrainSettings

    fed = settings.federated
    return TrainSettings(
        steps=steps or fed.steps,
        batch=fed.batch,
        accumulate=fed.accumulate,
        learning_rate=fed.learning_rate if learning_rate is None else learning_rate,
        max_tokens=fed.max_tokens,
    )


def _told(conditions: Conditions) -> Conditions:
    """The same; says at once, before a base is loaded, where training has to wait."""
    if (reason := conditions.obstacle()) is not None:
        say(f"floe: waiting: {reason}")
    return conditions


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
