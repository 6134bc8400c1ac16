"""A benchmark of several parts, each in a module of its own that is opened when it runs.

What parts pull in (torch, Flower) need not be installed for the others. A long form writes each
part's figures down as soon as they are there, so that a second call goes on where one stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from floe.core.errors import FloeError, Missing
from floe.core.files import atomic_write

Say = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: `module`.`function(full, say)` gives flat figures; `extra` brings its packages."""

    name: str
    module: str
    function: str
    extra: str


def collect(parts: tuple[Part, ...], *, full: bool, say: Say, path: Path | None = None) -> Figures:
    """The figures of all parts in one object; those that `path` holds are not measured again.

    Raises:
        Missing: a package that a part needs is not installed.
        FloeError: a part failed, or two parts give the same figure.
    """
    done: dict[str, Figures] = _kept(path)
    figures: Figures = {}
    for part in parts:
        if part.name in done:
            say(f"{part.name}: taken from {path}")
        else:
            say(f"{part.name}: begins")
            began_s = time.monotonic()
            found = _run(part, full, say)
            seconds = round(time.monotonic() - began_s, 1)
            say(f"{part.name}: {seconds:.0f} s")
            done[part.name] = {**found, f"{part.name}_part_s": seconds}
            _keep(path, done)
        if both := figures.keys() & done[part.name].keys():
            raise FloeError(f"two parts of the benchmark give {', '.join(sorted(both))}")
        figures |= done[part.name]
    return figures


def _run(part: Part, full: bool, say: Say) -> Figures:
    try:
        module = import_module(f"floe.evaluation.{part.module}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("floe"):
            raise
        raise Missing(
            f"the benchmark's part {part.name!r} needs {error.name}: install it with pip install "
            f"'floe[{part.extra}]'"
        ) from error
    found = getattr(module, part.function)(full, lambda text: say(f"{part.name}: {text}"))
    return dict(found)


def _kept(path: Path | None) -> dict[str, Figures]:
    if path is None or not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise FloeError(f"{path}, the figures kept so far, is damaged. Remove it") from error


def _keep(path: Path | None, done: Mapping[str, Figures]) -> None:
    if path is not None:
        with atomic_write(path) as file:
            file.write(json.dumps(done, indent=1, allow_nan=False).encode())
