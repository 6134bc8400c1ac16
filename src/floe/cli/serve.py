"""`floe serve`: the edge server alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from floe.cli.common import ConfigOption, ModelOption, progress_bar, read_config, say


def serve(
    config: ConfigOption = None,
    model: ModelOption = None,
    host: Annotated[str | None, typer.Option(help="Address; loopback by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="A tailored model's manifest.json, or its folder.")
    ] = None,
    any_board: Annotated[
        bool, typer.Option("--any-board", help="Take a model that was made for another board.")
    ] = False,
) -> None:
    """Serve the edge over HTTP in OpenAI's form until interrupted.

    Example: floe serve --config floe.toml --port 8741
    """
    from floe.assemble import edge
    from floe.assemble.tailored import with_manifest
    from floe.cli.web import listen, run_app, url_of
    from floe.core.config import Secrets, home
    from floe.serving.app import build_app
    from floe.serving.local import service_of

    settings = read_config(config, model=model)
    if manifest is not None:
        settings = with_manifest(settings, manifest, any_board=any_board)
    door = dataclasses.replace(
        settings.serve,
        host=settings.serve.host if host is None else host,
        port=settings.serve.port if port is None else port,
    )
    settings = dataclasses.replace(settings, serve=door)
    sock = listen(settings.serve.host, settings.serve.port)
    secrets = Secrets.from_environment(settings.tenants)
    with (
        progress_bar() as progress,
        edge(settings, secrets, home=home(), progress=progress) as parts,
    ):
        app = build_app(service_of(parts, secrets))
        address = url_of(sock)
        run_app(
            app,
            sock,
            started=lambda: say(f"floe: serving on {address}/v1 (Ctrl-C stops)"),
            finish=parts.close_cloud,
        )
