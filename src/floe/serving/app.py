"""The edge server: OpenAI's API over `answer`, with health, versions and metrics beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from floe.serving import catalogue
from floe.serving.admin import admin_routes
from floe.serving.ask import Ask, chat_ask, completion_ask
from floe.serving.body import read_json
from floe.serving.callers import KeyRing, caller_of
from floe.serving.connection import Slots
from floe.serving.edge import Edge, Guard
from floe.serving.embeddings import embedded, embedding_ask
from floe.serving.errors import Forbidden, document, note
from floe.serving.exchange import AnswerEndpoint
from floe.serving.feedback import Answered, feedback_route
from floe.serving.metrics import CONTENT_TYPE, Metrics
from floe.serving.replies import Json, encode
from floe.serving.service import Service

_Handler = Callable[[HttpRequest], Awaitable[Response]]


def build_app(service: Service) -> Starlette:
    """The ASGI app that serves `service`.

    Raises:
        BadConfig: a host that is reachable from outside, without an API key; one key for two.
    """
    slots = Slots(most=service.config.max_waiting)
    metrics = Metrics(
        in_flight=lambda: slots.taken,
        counters=service.counters,
        figures=service.figures,
        tenants=service.tenants,
        names=lambda: {model.id for model in service.models()},
    )
    keys = KeyRing(
        api_key=service.api_key, tenant_keys=service.tenant_keys, admin_key=service.admin_key
    )
    guard = Guard(config=service.config, keys=keys)
    answered = Answered()

    def answers(parse: Callable[..., Ask]) -> AnswerEndpoint:
        return AnswerEndpoint(
            service=service, parse=parse, slots=slots, metrics=metrics, answered=answered
        )

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", answers(chat_ask), methods=["POST"]),
            Route("/v1/completions", answers(completion_ask), methods=["POST"]),
            Route("/v1/embeddings", _embeddings(service), methods=["POST"]),
            feedback_route(service, answered),
            *admin_routes(service, keys),
            *_reading_routes(service, metrics),
        ],
        middleware=[Middleware(Edge, guard=guard, metrics=metrics)],
        exception_handlers={HTTPException: _http_error},
        lifespan=lambda _: _started(service),
    )
    app.router.redirect_slashes = False
    return app


@asynccontextmanager
async def _started(service: Service) -> AsyncIterator[None]:
    """The service's start runs beside the first requests; one that fails stops nobody."""

    async def start() -> None:
        try:
            await service.start()
        except Exception as error:
            note(error, request_id="start")

    starting = asyncio.ensure_future(start())
    try:
        yield
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def _reading_routes(service: Service, metrics: Metrics) -> list[Route]:
    async def models(http: HttpRequest) -> Response:
        return _json(catalogue.listed(service, caller_of(http.scope)))

    async def model(http: HttpRequest) -> Response:
        name = http.path_params["name"]
        return _json(catalogue.one(service, name, caller_of(http.scope)))

    async def health(_: HttpRequest) -> Response:
        return _state(service.alive(), well="ok")

    async def ready(_: HttpRequest) -> Response:
        return _state(service.alive() or service.ready(), well="ready")

    async def version(_: HttpRequest) -> Response:
        return _json(dict(service.versions))

    async def figures(http: HttpRequest) -> Response:
        if caller_of(http.scope).tenant in service.tenant_keys:
            raise Forbidden("figures of all tenants: send FLOE_API_KEY or FLOE_ADMIN_KEY")
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
