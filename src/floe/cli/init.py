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
    from floe.core.sections import TenantConfig

    lines = [
        "# Floe's configuration: every setting with its default. Unknown keys are errors.",
        "# Keys come from the environment only: FLOE_API_KEY, FLOE_CLOUD_KEY, FLOE_ADMIN_KEY.",
    ]
    for section in dataclasses.fields(Config):
        if section.name == "tenants":
            continue
        lines += ["", *_section(section.name, getattr(Config(), section.name))]
    example = _section("tenants.NAME", TenantConfig())
    lines += ["", *(line if line.startswith("#") else f"# {line}" for line in example)]
    return "\n".join(lines) + "\n"


def _section(title: str, record: Any) -> list[str]:
    """A record's meaning, its title and its values."""
    settings = [(f.name, getattr(record, f.name)) for f in dataclasses.fields(record)]
    return [
        *(f"# {line.strip()}".rstrip() for line in (record.__doc__ or "").splitlines()),
        f"[{title}]",
        *(f"{name} = {_toml(value)}" for name, value in settings),
    ]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
