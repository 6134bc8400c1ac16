"""What several commands share: options, the configuration, a progress bar."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.core.config import Config, check, load_config

if TYPE_CHECKING:
    from rich.progress import TaskID

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default: ./floe.toml if it exists."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="A model's name, reference or GGUF path."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def read_config(path: Path | None, *, model: str | None = None) -> Config:
    """The configuration of `path`, else ./floe.toml, else the defaults; `model` wins over it."""
    default = Path("floe.toml")
    config = load_config(path or (default if default.is_file() else None))
    if model is not None:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, name=model))
    check(config)
    return config


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A callback that draws downloads on stderr; None when nobody looks."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done_bytes: int, total_bytes: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total_bytes)
            bar.update(tasks[name], completed=done_bytes, total=total_bytes)

        yield show


def say(text: str) -> None:
    """A line for the person at the terminal, on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)
