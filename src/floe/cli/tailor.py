"""`floe tailor`: a model made for one device."""

from __future__ import annotations

import typer

from floe.cli.tailor_build import build, report, validate
from floe.cli.tailor_profile import profile
from floe.cli.tailor_search import search

app = typer.Typer(
    help="Profile, search, build, validate and report: a model made for this device.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None: ...


app.command()(profile)
app.command()(search)
app.command()(build)
app.command()(validate)
app.command()(report)
