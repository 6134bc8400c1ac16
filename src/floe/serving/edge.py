"""The outermost ring of the app: request ids, the guard at the door, errors, request counts."""

from __future__ import annotations

import ipaddress
import secrets

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floe.core.errors import BadConfig
from floe.core.sections import ServeConfig
from floe.serving.callers import Caller, KeyRing, keep_caller
from floe.serving.errors import ClientGone, HostNotAllowed, described, headers_of, note
from floe.serving.metrics import CLIENT_GONE, Metrics
from floe.serving.replies import encode

_PREFIXES = {"/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl"}
_OPEN = {"/health", "/ready"}


class Guard:
    """Who may come in: a key where there is one, else whoever calls the server by its own name.

    Without a key a foreign Host is refused: a web page could point its own name at this machine
    and read the answers (DNS rebinding). A browser cannot send the key, so the key is enough.
    The admin key alone guards nothing but what the operator does.

    Raises:
        BadConfig: when the host is not loopback and there is no key.
    """

    def __init__(self, *, config: ServeConfig, keys: KeyRing) -> None:
        if not keys.guards_all and not _is_loopback(config.host):
            raise BadConfig(
                f'serve.host = "{config.host}" is reachable from outside: set FLOE_API_KEY first, '
                'or use "127.0.0.1"',
                param="serve.host",
            )
        self._keys = keys
        self._host = config.host.lower()

    def caller(self, path: str, headers: Headers) -> Caller:
        """Who calls.

        Raises:
            NotAllowed, HostNotAllowed: a caller who may not come in.
        """
        if not self._keys.guards_all:
            self._check_host(headers.get("host"))
        elif path in _OPEN:
            return Caller()
        return self._keys.caller(headers)

    def _check_host(self, host: str | None) -> None:
        if host is None:
            return
        name = _name_of(host)
        if name != self._host and not _is_loopback(name) and not _is_address(name):
            raise HostNotAllowed(
                "the Host header does not name this server: call it by 127.0.0.1 or localhost, "
                "or set FLOE_API_KEY",
                param="host",
            )


class Edge:
    """ASGI middleware around everything: no error leaves it, and every request is counted."""

    def __init__(self, app: ASGIApp, *, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        request_id = f"{_PREFIXES.get(path, 'req')}-{secrets.token_hex(16)}"
        scope.setdefault("state", {})["floe_request_id"] = request_id
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            keep_caller(scope, self._guard.caller(path, Headers(scope=scope)))
            await self._app(scope, receive, tagged)
        except (ClientDisconnect, ClientGone):
            pass  # nobody is left to tell; counted below
        except Exception as error:
            note(error, request_id=request_id)
            if not status:
                await send_error(error, tagged, request_id=request_id)
        finally:
            self._metrics.request(path, status or CLIENT_GONE)


def request_id_of(scope: Scope) -> str:
    """The id that Edge gave this request."""
    return str(scope["state"]["floe_request_id"])


async def send_error(error: Exception, send: Send, *, request_id: str) -> None:
    """Send an error in OpenAI's shape."""
    status, document = described(error, request_id=request_id)
    body = encode(document)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers_of(error),
    }
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _name_of(host: str) -> str:
    """The name or address in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    if name.lower() in {"localhost", "localhost."}:
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
