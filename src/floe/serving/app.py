"""The edge server: OpenAI's API over `answer`, with health, versions and metrics beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from floe.serving import catalogue
from floe.serving.ask import chat_ask, completion_ask
from floe.serving.body import read_json
from floe.serving.connection import Slots
from floe.serving.edge import Edge, Guard
from floe.serving.embeddings import embedded, embedding_ask
from floe.serving.errors import document
from floe.serving.exchange import AnswerEndpoint
from floe.serving.metrics import CONTENT_TYPE, Metrics
from floe.serving.replies import Json, encode
from floe.serving.service import Service

_Handler = Callable[[HttpRequest], Awaitable[Response]]


def build_app(service: Service) -> Starlette:
    """The ASGI app that serves `service`.

    Raises:
        BadConfig: a host that is reachable from outside, without an API key.
    """
    slots = Slots(most=service.config.max_waiting)
    metrics = Metrics(in_flight=lambda: slots.taken, counters=service.counters)
    guard = Guard(config=service.config, api_key=service.api_key)
    chat = AnswerEndpoint(service=service, parse=chat_ask, slots=slots, metrics=metrics)
    completion = AnswerEndpoint(service=service, parse=completion_ask, slots=slots, metrics=metrics)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/embeddings", _embeddings(service), methods=["POST"]),
            *_reading_routes(service, metrics),
        ],
        middleware=[Middleware(Edge, guard=guard, metrics=metrics)],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return app


def _reading_routes(service: Service, metrics: Metrics) -> list[Route]:
    async def models(_: HttpRequest) -> Response:
        return _json(catalogue.listed(service))

    async def model(http: HttpRequest) -> Response:
        return _json(catalogue.one(service, http.path_params["name"]))

    async def health(_: HttpRequest) -> Response:
        return _state(service.alive(), well="ok")

    async def ready(_: HttpRequest) -> Response:
        return _state(service.alive() or service.ready(), well="ready")

    async def version(_: HttpRequest) -> Response:
        return _json(dict(service.versions))

    async def figures(_: HttpRequest) -> Response:
        return Response(metrics.page(), headers={"content-type": CONTENT_TYPE})

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/ready", ready),
        Route("/version", version),
        Route("/metrics", figures),
    ]


def _embeddings(service: Service) -> _Handler:
    async def embeddings(http: HttpRequest) -> Response:
        body = await read_json(http, max_bytes=service.config.max_body_bytes)
        ask, embedder = embedding_ask(body, service)
        return _json(await asyncio.to_thread(embedded, ask, embedder))

    return embeddings


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    message = {404: "no such address", 405: "this address does not know this method"}.get(
        status, "the request cannot be served"
    )
    return _json(
        document(message, kind="invalid_request_error"), status=status, headers=dict(headers or {})
    )


def _state(reason: str | None, *, well: str) -> Response:
    if reason is None:
        return _json({"status": well})
    return _json({"status": "unavailable", "reason": reason}, status=503)


def _json(value: Json, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        encode(value), status_code=status, headers=headers, media_type="application/json"
    )
