"""Every command of `floe`, and how an error reaches the person who typed it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from floe import __version__
from floe.cli import (
    adapters,
    bench,
    cache,
    chat,
    cloud,
    doctor,
    explain,
    fed,
    fusion,
    init,
    power,
    privacy,
    pull,
    serve,
    tailor,
    up,
)
from floe.core.config import home
from floe.core.errors import BadConfig, FloeError, Missing

app = typer.Typer(
    name="floe",
    help="A private, fast and personal language model runtime for the edge.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_state = {"debug": False}
_EXTRAS = {
    "torch": "train", "transformers": "train", "peft": "train", "gguf": "convert",
    "optuna": "tailor", "flwr": "fed", "ray": "fed", "dp_accounting": "fed", "scipy": "fed",
    "opacus": "dp", "cryptography": "sign",
}  # fmt: skip
"""What to install where a part did not say it itself."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"floe {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    _state["debug"] = debug


app.command("up")(up.up)
app.command("serve")(serve.serve)
app.command("cloud")(cloud.cloud)
app.command("chat")(chat.chat)
app.command("pull")(pull.pull)
app.add_typer(adapters.app, name="adapters")
app.add_typer(cache.app, name="cache")
app.add_typer(fusion.app, name="fusion")
app.command("explain")(explain.explain)
app.add_typer(privacy.app, name="privacy")
app.add_typer(power.app, name="power")
app.add_typer(fed.app, name="fed")
app.add_typer(tailor.app, name="tailor")
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("init")(init.init)


def main(*args: Any) -> None:
    """Run a command; a FloeError ends as one line on stderr and its class's exit code."""
    try:
        app(*args)
    except FloeError as error:
        if _state["debug"]:
            raise
        print(f"floe: {chat.visible(error.message)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if _state["debug"] or package not in _EXTRAS:
            raise
        extra = _EXTRAS[package]
        print(f"floe: this needs {package}: pip install 'floe[{extra}]'", file=sys.stderr)
        sys.exit(Missing.exit_code)
    except OSError as error:
        if _state["debug"] or not _is_at_home(error.filename):
            raise
        reason = f"{error.filename} cannot be used: {error.strerror}"
        print(f"floe: {reason}. FLOE_HOME must name a folder to write in", file=sys.stderr)
        sys.exit(BadConfig.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _is_at_home(name: object) -> bool:
    """Whether a file's name is FLOE_HOME, above it or inside it."""
    try:
        folder = home()
    except BadConfig:
        return False
    path = Path(str(name))
    return path in (folder, *folder.parents) or folder in path.parents
