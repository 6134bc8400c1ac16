"""The server's end: rounds over Flower's grid, in this process or in Flower's simulation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.serverapp import ServerApp
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import push_task_output

from floe.assemble.federated import (
    devices_file,
    secure_terms,
    server_base,
    server_folder,
    server_parts,
)
from floe.assemble.judging import judge_run
from floe.assemble.secure_rounds import run_secure_rounds
from floe.core.errors import FloeError
from floe.core.files import atomic_write
from floe.core.sections import FederatedConfig
from floe.federated.identity import read_devices
from floe.flower.inner import acquire, control_client, let_in, runtime_client, start_run
from floe.flower.settings import AppSettings
from floe.flower.transport import GridTransport
from floe.learn import ServerParts, Tell, run_rounds

OUTCOME = "outcome.json"
PATIENCE_S = 10.0
"""So long a SuperLink that does not answer is asked again."""


def make_app(settings: AppSettings, tell: Tell = lambda _report: None) -> Any:
    """A ServerApp for Flower's simulation, whose outcome is a file for who started it."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        del context
        outcome: dict[str, Any] = {"error": ""}
        try:
            hold_rounds(grid, settings, tell)
        except FloeError as error:
            outcome = {"error": error.message, "kind": type(error).__name__}
        folder = server_folder(settings.federated, home=Path(settings.home))
        with atomic_write(folder / OUTCOME) as file:
            file.write(json.dumps(outcome).encode())

    return app


def hold_rounds(grid: Any, settings: AppSettings, tell: Tell) -> None:
    """Hold the rounds that are left, and have the members judge what came out.

    Raises:
        BadRound, PrivacySpent, BadConfig, BadModel: what stopped them. Busy: another server holds
        the same state.
    """
    fed, home = settings.federated, Path(settings.home)
    digest, shapes = server_base(fed, settings.model, home=home)
    devices = read_devices(devices_file(fed, home=home))
    parts = server_parts(
        fed,
        folder=server_folder(fed, home=home),
        base_digest=digest,
        shapes=shapes,
        devices=devices,
        repeatable=settings.simulated > 0,
    )
    with parts.state.locked():
        if fed.secagg:  # nobody judges: a verdict would tell of one device
            _hold_secure(grid, parts, fed, tell)
            return
        transport = GridTransport(
            grid, least=fed.min_clients, all_of=len(devices), wait_s=fed.deadline_s
        )
        memory = run_rounds(transport, parts, rounds=fed.rounds, tell=tell)
        judge_run(transport, parts, memory, fed)


def _hold_secure(grid: Any, parts: ServerParts, fed: FederatedConfig, tell: Tell) -> None:
    from floe.flower.secagg_server import SecureGridTransport  # Flower's older half, seldom needed

    transport = SecureGridTransport(
        grid, least=fed.min_clients, all_of=len(parts.rules.devices), wait_s=fed.deadline_s
    )
    run_secure_rounds(transport, parts, secure_terms(fed), rounds=fed.rounds, tell=tell)


@contextmanager
def run_of(app: Path, *, port: int, secret: bytes, node_keys: Mapping[str, bytes]) -> Iterator[Any]:
    """A run on the SuperLink with this inner port, and its grid, in this process.

    Raises errors of Flower's client where the SuperLink does not answer.
    """
    address = f"127.0.0.1:{port}"
    control = control_client(port, secret)
    for name, key in node_keys.items():
        let_in(control, key, name=name)
    start_run(control, app)
    token = acquire(runtime_client(address, secret=secret), TaskType.SERVER_APP)
    grid = HttpGrid(runtime_api_address=address, insecure=True, token=token)
    client = grid._runtime_client
    grid._retry_invoker.max_time = PATIENCE_S
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    status, context = SubStatus.FAILED, None
    try:
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        context = context_from_proto(given.context)
        grid.set_run(run_from_proto(given.run))
        yield grid
        status = SubStatus.COMPLETED
    finally:
        grid._retry_invoker.max_tries = 1
        push_task_output(client, context, status, "")
        heartbeat.stop()
        grid.close()
        control.close()
