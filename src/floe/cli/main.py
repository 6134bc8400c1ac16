"""Every command of `floe`, and how an error reaches the person who typed it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from floe import __version__
from floe.cli import (
    adapters,
    bench,
    chat,
    cloud,
    doctor,
    explain,
    fusion,
    init,
    privacy,
    pull,
    serve,
    up,
)
from floe.core.errors import FloeError

app = typer.Typer(
    name="floe",
    help="A private, fast and personal language model runtime for the edge.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_state = {"debug": False}


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
app.add_typer(fusion.app, name="fusion")
app.command("explain")(explain.explain)
app.add_typer(privacy.app, name="privacy")
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
    except KeyboardInterrupt:
        sys.exit(130)
