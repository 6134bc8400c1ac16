"""What the commands of `floe fed` share: the base, and torch where it is needed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from floe.core.config import Config

BaseOption = Annotated[
    str | None,
    typer.Option(help="A Hugging Face folder to train for; default: federated.base, else model."),
]


def learning() -> Any:
    """`floe.assemble.learning`, which pulls torch in.

    Raises:
        Missing: it is not installed.
    """
    from floe.core.errors import Missing

    try:
        from floe.assemble import learning as found
    except ModuleNotFoundError as error:
        raise Missing(
            f"training needs {error.name}: install it with pip install 'floe[train]'"
        ) from error
    return found


def base_name(base: str | None, settings: Config) -> str:
    """What adapters are trained for: the option, else federated.base, else the served model."""
    return base or settings.federated.base or settings.model.name


def plan_file() -> Path:
    """Where `floe fed plan` keeps what it measured for `floe fed join`."""
    from floe.core.config import home

    return home() / "federated" / "plan.json"


@contextmanager
def ended_by_exit() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) in the block, so that what it encloses is closed."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
