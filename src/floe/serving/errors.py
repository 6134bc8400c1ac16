"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path

from floe.core.errors import BadRequest, Busy, ContextTooLong, FloeError, NotAllowed, NotFound

log = logging.getLogger("floe.serving")


class BodyTooLarge(BadRequest):
    """A body over `serve.max_body_bytes`."""

    http_status = 413


class WrongContentType(BadRequest):
    """A body that is not plain JSON."""

    http_status = 415


class BodyTooSlow(BadRequest):
    """A body that did not arrive in time."""

    http_status = 408


class HostNotAllowed(BadRequest):
    """A Host header that does not name this server (a guard against DNS rebinding)."""

    http_status = 403


class Forbidden(BadRequest):
    """A door that this caller's key does not open."""

    http_status = 403
    kind = "permission_error"


class WorkerDied(FloeError):
    """The engine's worker is gone; nothing can be answered until a restart (bug-log A38)."""

    http_status = 503
    kind = "engine_error"


class ClientGone(Exception):
    """The client left or stopped reading; there is nobody to tell."""


_CODES: tuple[tuple[type[FloeError], str], ...] = (
    (ContextTooLong, "context_length_exceeded"),
    (BodyTooLarge, "request_too_large"),
    (NotAllowed, "invalid_api_key"),
    (Busy, "overloaded"),
)


def document(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def described(error: Exception, *, request_id: str) -> tuple[int, dict[str, object]]:
    """HTTP status and body of an error; one that is not ours shows the request id only."""
    if not isinstance(error, FloeError):
        message = f"internal error; the server's log has it under request id {request_id}"
        return 500, document(message, kind="internal_error", code="internal_error")
    body = document(error.message, kind=error.kind, param=error.param, code=_code(error))
    return error.http_status, body


def headers_of(error: Exception) -> Mapping[str, str]:
    """Headers that go with an error's status."""
    if isinstance(error, NotAllowed):
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "1"} if isinstance(error, Busy) else {}


def note(error: Exception, *, request_id: str) -> None:
    """Log what the operator must know: class and place, never the message, which may quote text.

    Being busy is no fault: it is answered with 503, counted in /metrics and logged for debugging.
    """
    if isinstance(error, FloeError) and error.http_status < 500:
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
    level = logging.DEBUG if isinstance(error, Busy) else logging.ERROR
    log.log(level, "request %s failed: %s at %s", request_id, type(error).__name__, place)


def _code(error: FloeError) -> str | None:
    if isinstance(error, NotFound) and error.param in {"model", None}:
        return "model_not_found"
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)
