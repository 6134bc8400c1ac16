"""The server's SuperLink with two faces: devices see what is for devices, and nothing else.

Flower 1.42 serves all its APIs on one port and asks nobody who starts runs: whoever reaches it
could send code of their own to the server and to every device. Here the address that devices see
answers Flower's Fleet API alone, over TLS; the rest listens on loopback and wants a secret.

`python -m floe.flower.link --address HOST:PORT --inner-port PORT --secret FILE --parent PID`.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from floe.flower.family import end_with
from floe.flower.inner import SECRET_HEADER

MAX_BODY_BYTES = 64 << 20
"""Of a device's request; Flower sends arrays in pieces of 20 MB."""
MAX_AT_ONCE = 256
_FLEET = "/v1/fleet/"
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class Outer:
    """What devices and the network see: the Fleet API, and requests of a bounded size."""

    def __init__(self, app: _App, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer 404 to what is not for devices, 413 to what is too large."""
        if scope["type"] != "http":
            return
        if not scope["path"].startswith(_FLEET):
            await _refuse(send, 404)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # the device went away
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                await _refuse(send, 413)
                return
            if not message.get("more_body", False):
                break
        await self._app(scope, _once(bytes(body), receive), send)


class Inner:
    """What the server's own processes see: everything, with the secret where runs are started.

    The Runtime API has Flower's own check, by the same secret and by each task's token.
    """

    def __init__(self, app: _App, *, secret: bytes) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer 403 to who starts runs without the secret."""
        if scope["type"] == "http" and not scope["path"].startswith("/v1/runtime/"):
            given = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
            if not hmac.compare_digest(given, self._secret.hex().encode()):
                await _refuse(send, 403)
                return
        await self._app(scope, receive, send)


def _once(body: bytes, receive: _Receive) -> _Receive:
    """The request's body, which has been read, and then whatever follows."""
    read = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: _Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def superlink_app(*, inner_port: int, secret: bytes, node_auth: bool) -> Any:
    """Flower's app with its state in memory: Floe's own state is what survives a restart."""
    return create_app(
        SuperLinkLifespanConfig(
            control_address="",
            health_server_address=None,
            host="127.0.0.1",
            port=inner_port,
            insecure=True,  # of the inner face
            certificates=None,
            superexec_auth_secret=secret,
            authn_plugin=NoOpControlAuthnPlugin(),  # the inner face asks for the secret instead
            event_log_plugin=None,
            fleet_event_log_plugin=None,
            enable_event_log=False,
            artifact_provider=None,
            enable_supernode_auth=node_auth,
            fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
            fleet_api_address=None,
            simulation=False,
            ssl_ca_certfile=None,
            ssl_certfile=None,
            ssl_keyfile=None,
            database=FLWR_IN_MEMORY_DB_NAME,
            isolation=ISOLATION_MODE_PROCESS,  # Flower starts no code by itself
            runtime_dependency_install=False,
        ),
        SuperLinkLifespan,
    )


def main() -> None:
    """Serve until told to stop, or until the parent is gone."""
    told = _arguments()
    end_with(told.parent)
    secret = Path(told.secret).read_bytes()
    app = superlink_app(inner_port=told.inner_port, secret=secret, node_auth=told.node_auth)
    inner = uvicorn.Server(
        uvicorn.Config(
            Inner(app, secret=secret),
            host="127.0.0.1",
            port=told.inner_port,
            access_log=False,
            log_level=logging.WARNING,
        )
    )
    thread = threading.Thread(target=inner.run)
    thread.start()
    while thread.is_alive() and not inner.started:
        time.sleep(0.02)
    host, _, port = told.address.rpartition(":")
    try:
        if inner.started:
            uvicorn.run(
                Outer(app),
                host=host.strip("[]"),
                port=int(port),
                lifespan="off",  # the inner face's is the app's
                access_log=False,
                log_level=logging.WARNING,
                limit_concurrency=MAX_AT_ONCE,
                ssl_certfile=told.certificate or None,
                ssl_keyfile=told.certificate_key or None,
            )
    finally:
        inner.should_exit = True
        thread.join()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="floe.flower.link")
    for name in ("--address", "--secret"):
        parser.add_argument(name, required=True)
    for name in ("--inner-port", "--parent"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--certificate", "--certificate-key"):
        parser.add_argument(name, default="")
    parser.add_argument("--node-auth", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
