"""One answer on its way out: events of `answer` to a reply, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from floe.core.errors import Busy, FloeError
from floe.core.token import Draw, Finished, Started, Token
from floe.serving.ask import Ask
from floe.serving.body import read_json
from floe.serving.callers import caller_of
from floe.serving.connection import Slots, deliver, while_connected
from floe.serving.edge import request_id_of
from floe.serving.errors import ClientGone, WorkerDied, described, note
from floe.serving.feedback import Answered
from floe.serving.metrics import Metrics
from floe.serving.names import check_names
from floe.serving.replies import Json, encode, opening_facts, reply_for
from floe.serving.service import Service

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class AnswerEndpoint:
    """An ASGI endpoint: read, check, take a place, answer, give the place back.

    The place is held inside one coroutine, so that no way out can keep it (bug-log A59).
    """

    def __init__(
        self,
        *,
        service: Service,
        parse: Callable[..., Ask],
        slots: Slots,
        metrics: Metrics,
        answered: Answered,
    ) -> None:
        self._answered = answered
        self._service = service
        self._parse = parse
        self._slots = slots
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        config = self._service.config
        body = await read_json(HttpRequest(scope, receive), max_bytes=config.max_body_bytes)
        request_id = request_id_of(scope)
        ask = self._parse(body, request_id=request_id, default_max_tokens=config.default_max_tokens)
        tenant = caller_of(scope).tenant
        ask = replace(ask, request=replace(ask.request, tenant=tenant))
        check_names(self._service, ask.request)
        check_ready(self._service)
        with self._slots.one():
            exchange = Exchange(
                ask=ask,
                service=self._service,
                metrics=self._metrics,
                send=send,
                answered=self._answered,
            )
            try:
                await while_connected(exchange.run(), receive, request_id=request_id)
            except ClientGone:
                if not exchange.finished:
                    self._metrics.cancelled()
                raise


def check_ready(service: Service) -> None:
    """Refuse work that cannot be done.

    Raises:
        WorkerDied: the engine is gone. Busy: it is not there yet.
    """
    if (reason := service.alive()) is not None:
        raise WorkerDied(f"the engine has stopped: {reason}. Restart the server")
    if (reason := service.ready()) is not None:
        raise Busy(f"not ready: {reason}")


class Exchange:
    """Carries one answer; `finished` says whether the answer came to its end."""

    def __init__(
        self, *, ask: Ask, service: Service, metrics: Metrics, send: Send, answered: Answered
    ) -> None:
        self._ask = ask
        self._answered = answered
        self._service = service
        self._metrics = metrics
        self._send = send
        self._reply = reply_for(ask, created_s=int(time.time()), fingerprint=service.fingerprint)
        self._began_s = time.perf_counter()
        self._last_s: float | None = None
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._origin = "edge"
        self._texts: list[str] = []
        self._draws: list[Draw] = []
        self._open = False

    @property
    def finished(self) -> bool:
        """Whether the answer came to its end, delivered or not (bug-log A58)."""
        return self._finished is not None

    async def run(self) -> None:
        """Send the whole answer; an error after the first byte becomes the stream's last event."""
        try:
            await self._follow()
            started, finished = self._both()
            if self._ask.stream:
                await self._close_stream(started, finished)
            else:
                await self._send_whole(started, finished)
        except ClientGone:
            raise
        except Exception as error:
            if not self._open:
                raise
            note(error, request_id=self._ask.request.id)
            _, document = described(error, request_id=self._ask.request.id)
            await self._event(document)
            await self._end()

    async def _follow(self) -> None:
        async with aclosing(self._service.answer(self._ask.request)) as events:
            async for event in events:
                if isinstance(event, Started):
                    self._start(event)
                elif isinstance(event, Token):
                    await self._token(event)
                else:
                    self._finish(event)

    def _start(self, event: Started) -> None:
        self._started = event
        self._metrics.started(event, tenant=self._ask.request.tenant)

    def _finish(self, event: Finished) -> None:
        self._finished = event
        request = self._ask.request
        self._answered.add(request.id, request.tenant)
        if self._started is not None:
            self._metrics.finished(self._started, event, tenant=request.tenant)

    async def _token(self, event: Token) -> None:
        self._time(event)
        self._origin = event.draw.origin
        if not self._ask.stream:
            self._texts.append(event.text)
            if self._ask.log_probs:
                self._draws.append(event.draw)
            return
        await self._open_stream()
        if event.text or self._ask.log_probs:
            await self._event(self._reply.piece(event.text, [event.draw], origin=self._origin))

    def _time(self, event: Token) -> None:
        now_s, first = time.perf_counter(), self._last_s is None
        waited_s = now_s - (self._began_s if self._last_s is None else self._last_s)
        tenant = self._ask.request.tenant
        self._metrics.token(event.draw.origin, waited_s=waited_s, first=first, tenant=tenant)
        self._last_s = now_s

    def _both(self) -> tuple[Started, Finished]:
        if self._started is None or self._finished is None:
            raise FloeError("the answer ended without a result; nothing is known of the cause")
        return self._started, self._finished

    async def _send_whole(self, started: Started, finished: Finished) -> None:
        text = "".join(self._texts) + finished.text
        body = encode(self._reply.whole(started, text, self._draws, finished))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._begin(headers)
        await deliver(self._send, {"type": "http.response.body", "body": body})

    async def _open_stream(self) -> None:
        """Begin the response, as late as the first token: until then an error has its status."""
        if self._open:
            return
        await self._begin(_STREAM_HEADERS)
        if self._started is not None:
            opening = self._reply.opening(opening_facts(self._started))
            if opening is not None:
                await self._event(opening)

    async def _close_stream(self, started: Started, finished: Finished) -> None:
        await self._open_stream()
        if finished.text:
            await self._event(self._reply.piece(finished.text, (), origin=self._origin))
        await self._event(self._reply.closing(started, finished))
        if self._ask.include_usage:
            await self._event(self._reply.counting(started, finished))
        await self._write(b"data: [DONE]\n\n")
        await self._end()

    async def _begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._open = True
        await deliver(
            self._send, {"type": "http.response.start", "status": 200, "headers": headers}
        )

    async def _event(self, document: Json) -> None:
        await self._write(b"data: " + encode(document) + b"\n\n")

    async def _write(self, data: bytes) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": True}
        await deliver(self._send, message)

    async def _end(self) -> None:
        await deliver(self._send, {"type": "http.response.body", "body": b""})
