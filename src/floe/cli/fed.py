"""`floe fed`: adapters that devices learn together."""

from __future__ import annotations

import typer

from floe.cli import fed_train

app = typer.Typer(
    help="Plan, train, simulate, serve rounds, publish: adapters that devices learn together.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None: ...


app.command("plan")(fed_train.plan)
app.command("train")(fed_train.train)
