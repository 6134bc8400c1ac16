"""`floe fed`: adapters that devices learn together."""

from __future__ import annotations

import typer

from floe.cli import fed_certificates, fed_epsilon, fed_plan, fed_publish, fed_run, fed_train

app = typer.Typer(
    help="Plan, train, simulate, serve rounds, publish: adapters that devices learn together.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None: ...


app.command("epsilon")(fed_epsilon.epsilon)
app.command("plan")(fed_plan.plan)
app.command("train")(fed_train.train)
app.command("export")(fed_publish.export)
app.command("publish")(fed_publish.publish)
app.command("versions")(fed_publish.versions)
app.command("rollback")(fed_publish.rollback)
app.command("revoke")(fed_publish.revoke)
app.add_typer(fed_publish.keys, name="keys")
app.command("simulate")(fed_run.simulate)
app.command("certificates")(fed_certificates.certificates)
app.command("server")(fed_run.server)
app.command("join")(fed_run.join)
app.command("report")(fed_run.report)
