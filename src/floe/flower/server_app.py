"""The server's app: rounds over Flower's grid, their outcome in a file for who started it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flwr.serverapp import ServerApp

from floe.assemble.federated import devices_file, server_base, server_folder, server_parts
from floe.assemble.judging import judge_run
from floe.core.errors import FloeError
from floe.core.files import atomic_write
from floe.federated.identity import read_devices
from floe.flower.settings import KEY, AppSettings
from floe.flower.transport import GridTransport
from floe.learn import Tell, run_rounds

OUTCOME, PID = "outcome.json", "server.pid"


def make_app(settings: AppSettings | None = None, tell: Tell = lambda _report: None) -> Any:
    """A ServerApp; its settings from the run's configuration where none are given."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        told = settings or AppSettings.read(Path(str(context.run_config[KEY])))
        hold(grid, told, tell)

    return app


def hold(grid: Any, settings: AppSettings, tell: Tell) -> None:
    """Hold the rounds that are left, and write how it ended; no such file means killed."""
    folder = server_folder(settings.federated, home=Path(settings.home))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME).unlink(missing_ok=True)
    with atomic_write(folder / PID) as file:
        file.write(str(os.getpid()).encode())
    outcome: dict[str, Any] = {"error": ""}
    try:
        _hold(grid, settings, tell, folder)
    except FloeError as error:
        outcome = {"error": error.message, "kind": type(error).__name__}
    with atomic_write(folder / OUTCOME) as file:
        file.write(json.dumps(outcome).encode())


def _hold(grid: Any, settings: AppSettings, tell: Tell, folder: Path) -> None:
    fed, home = settings.federated, Path(settings.home)
    digest, shapes = server_base(fed, settings.model, home=home)
    devices = read_devices(devices_file(fed, home=home))
    parts = server_parts(
        fed,
        folder=folder,
        base_digest=digest,
        shapes=shapes,
        devices=devices,
        repeatable=settings.simulated > 0,
    )
    transport = GridTransport(
        grid, least=fed.min_clients, all_of=len(devices), wait_s=fed.deadline_s
    )
    with parts.state.locked():
        memory = run_rounds(transport, parts, rounds=fed.rounds, tell=tell)
        judge_run(transport, parts, memory, fed)


app = make_app()
