"""`floe init`: write a commented configuration."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from floe.cli.common import say


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("floe.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write every setting with its default and what it means.

    Example: floe init floe.toml
    """
    from floe.core.errors import BadRequest
    from floe.core.files import atomic_write

    if path.exists() and not force:
        raise BadRequest(f"{path} exists; choose another name or add --force", param="path")
    with atomic_write(path) as file:
        file.write(commented_config().encode())
    say(f"wrote {path}; start with: floe serve --config {path}")


def commented_config() -> str:
    """The defaults as TOML, each section under its meaning."""
    from floe.core.config import Config

    lines = [
        "# Floe's configuration: every setting with its default. Unknown keys are errors.",
        "# Keys come from the environment only: FLOE_API_KEY, FLOE_CLOUD_KEY, FLOE_ADMIN_KEY.",
    ]
    for section in dataclasses.fields(Config):
        record: Any = getattr(Config(), section.name)
        lines += ["", *(f"# {line.strip()}" for line in (record.__doc__ or "").splitlines())]
        lines.append(f"[{section.name}]")
        for setting in dataclasses.fields(record):
            lines.append(f"{setting.name} = {_toml(getattr(record, setting.name))}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
