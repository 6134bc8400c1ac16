"""What several commands share: options, the configuration, a progress bar."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.core.config import Config, load_config
from floe.core.config_rules import check

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
Progress = Callable[[str, int, int | None], None]
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
def progress_bar(*, quiet: bool = False) -> Iterator[Progress | None]:
    """A callback that shows downloads on stderr: a bar on a terminal, else a line per file."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _line_per_file()
    else:
        with _bars() as show:
            yield show


def _line_per_file() -> Progress:
    seen: set[str] = set()

    def show(name: str, _done_bytes: int, total_bytes: int | None) -> None:
        if name not in seen:
            seen.add(name)
            size = f" ({total_bytes / 1e6:.1f} MB)" if total_bytes else ""
            say(f"floe: fetching {name}{size}")

    return show


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done_bytes: int, total_bytes: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total_bytes)
            bars.update(tasks[name], completed=done_bytes, total=total_bytes)

        yield show


def say(text: str) -> None:
    """A line for the person at the terminal, on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)
