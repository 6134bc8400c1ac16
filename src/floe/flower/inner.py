"""Clients of Flower's APIs on loopback, for the processes that `floe fed` starts itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

SECRET_HEADER = "x-floe-secret"
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


class _WithHeaders:
    """Adds headers to each request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    def intercept(self, context: Any, call_next: Any) -> Any:
        """The response to the request with them."""
        add_headers(context.request, self._headers)
        return call_next(context)


def control_client(port: int, secret: bytes) -> Any:
    """Who may start runs and let nodes in."""
    return ControlHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr"),
            _WithHeaders({SECRET_HEADER: secret.hex()}),
        ],
    )


def start_run(control: Any, app: Path) -> int:
    """Start a run of the app in this folder; its number."""
    import hashlib

    content = build_fab_from_disk(app)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)


def let_in(control: Any, public_key: bytes, *, name: str) -> int:
    """Let a node with this public key (DER) in, under a name; its number."""
    request = RegisterNodeRequest(public_key=public_key, location=None, name=name)
    return int(control.RegisterNode(request).node_id)


def runtime_client(address: str, *, secret: bytes = b"", token: str = "") -> Any:
    """Who takes tasks (by `secret`), or works on one (by its `token`)."""
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret:
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
        )
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )


def acquire(client: Any, kind: str) -> str:
    """The token of a task of this type (flwr's TaskType) that waits, "" where none does."""
    return str(client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind])).token)
