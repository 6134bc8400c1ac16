"""`floe bench federated`: exactness, speed, privacy, losses and faults of learning together.

Each part lives in a module of its own and is opened when it runs: they pull torch and Flower in.
The long form writes each part's figures down as soon as it is there, so that a second call goes on
where a stopped one ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from floe.core.config import home
from floe.core.errors import FloeError, Missing
from floe.core.files import atomic_write
from floe.evaluation.federated_page import SURVIVES
from floe.evaluation.machine import commit

Say = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: `module`.`function(full, say)` gives flat figures; `extra` brings its packages."""

    name: str
    module: str
    function: str
    extra: str


PARTS = (
    Part(name="speed", module="federated_speed", function="federated_speed", extra="fed"),
    Part(name="privacy", module="federated_dp", function="dp_figures", extra="fed,dp,train"),
    Part(name="losses", module="federated_losses", function="loss_figures", extra="fed,train"),
    Part(name="faults", module="federated_faults", function="fault_figures", extra="fed,train"),
)


def federated_benchmark(full: bool, say: Say) -> Figures:
    """Issue 6's figures.

    Raises:
        Missing: a package that a part needs is not installed.
        FloeError: a part failed, or two parts give the same figure.
    """
    path = home() / "bench" / f"federated-{commit() or 'unknown'}.json" if full else None
    figures = collect(PARTS, full=full, say=say, path=path)
    if path is not None:
        path.unlink(missing_ok=True)
    return {**figures, **derived(figures)}


def collect(parts: tuple[Part, ...], *, full: bool, say: Say, path: Path | None = None) -> Figures:
    """The figures of all parts in one object; those that `path` holds are not measured again.

    Raises as `federated_benchmark`.
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


def derived(figures: Mapping[str, Any]) -> Figures:
    """What issue 6 asks of several figures together; None where one was not measured."""

    def less(field: str, other: str) -> float | None:
        a, b = figures.get(field), figures.get(other)
        return None if a is None or b is None else round(a - b, 4)

    clean = figures.get("faults_loss_clean")
    faults = [figures.get(f"faults_loss_{name}") for name, _ in SURVIVES]
    known = [abs(loss - clean) / clean for loss in faults if clean and loss is not None]
    return {
        "fault_loss_worst": max(known) if len(known) == len(faults) else None,
        "clustered_below_fedavg": less("loss_fedavg", "loss_clustered"),
        "clustered_below_local": less("loss_local", "loss_clustered"),
        "padding_above_product": less("padding_error", "product_error"),
        "factor_mean_above_product": less("factor_mean_error", "product_error"),
    }


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
