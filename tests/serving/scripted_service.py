"""A scripted `answer`, a service around it, and a real uvicorn server in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from floe.core.request import Request
from floe.core.route import Route, Share
from floe.core.text import TextStream
from floe.core.token import Draw, Event, Finished, FinishReason, Started, Token, TopToken
from floe.core.verdict import Finding, Verdict
from floe.serving.service import Embedder, ModelRecord, Service

LOCAL = Verdict(
    action="local",
    reason="private data",
    findings=(
        Finding(entity="EMAIL", field="prompt", start=0, end=3, score=1.0, recogniser="rules"),
    ),
)
ALLOW = Verdict(action="allow", reason="nothing private found")
MATHS = Route(shares=(Share(name="maths", digest="d1", weight=1.0),), how="routed")
WAIT_S = 20.0


def draw(data: bytes, origin: str = "edge", log_prob: float = -0.5, *, n_top: int = 3) -> Draw:
    top = [TopToken(id=0, data=data, log_prob=log_prob)]
    top += [TopToken(id=i, data=b"t%d" % i, log_prob=-float(i)) for i in range(1, n_top)]
    return Draw(id=0, data=data, log_prob=log_prob, origin=origin, top=tuple(top))  # type: ignore[arg-type]


HELLO = (draw(b"Hello"), draw(b", ", "fused"), draw(b"wor", "cloud"), draw(b"ld"))


@dataclass
class Script:
    """What the scripted answer does; it also remembers what it was asked.

    `fail_at` = raise `error` before that event (0 = before the start). `hang_at` = wait there
    for ever, after having said so through `hanging`. `cleaned` is released at every end.
    """

    draws: Sequence[Draw] = HELLO
    reason: FinishReason = "stop"
    verdict: Verdict = ALLOW
    route: Route = MATHS
    cloud: str = "llm"
    asked: int = 2
    error: Exception | None = None
    fail_at: int | None = None
    hang_at: int | None = None
    ends: bool = True
    requests: list[Request] = field(default_factory=list)
    running: int = 0
    drawn: int = 0
    hanging: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    cleaned: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    async def answer(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.running += 1
        try:
            async for event in self._events(request):
                yield event
        finally:
            self.running -= 1
            self.cleaned.release()

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        await self._point(0)
        yield Started(verdict=self.verdict, route=self.route, prompt_tokens=7, cloud=self.cloud)
        text = TextStream(request.sampling.stop)
        drawn = []
        for at, one in enumerate(self.draws[: request.sampling.max_tokens], start=1):
            await self._point(at)
            drawn.append(one)
            self.drawn = at
            yield Token(draw=one, text=text.feed(one.data))
            if text.stopped:
                break
        await self._point(len(self.draws) + 1)
        if self.ends:
            yield Finished(
                reason=self.reason,
                text=text.finish(),
                completion_tokens=len(drawn),
                fused_tokens=sum(d.origin == "fused" for d in drawn),
                cloud_tokens=sum(d.origin == "cloud" for d in drawn),
                cached_tokens=3,
                cloud_asked=self.asked if self.cloud else 0,
            )

    async def _point(self, at: int) -> None:
        await asyncio.sleep(0)
        if at == self.fail_at and self.error is not None:
            raise self.error
        if at == self.hang_at:
            self.hanging.release()
            await asyncio.Event().wait()


MODELS = (
    ModelRecord(id="smol", kind="base", created_s=1_700_000_000, digest="base-digest"),
    ModelRecord(id="auto", kind="auto", parent="smol"),
    ModelRecord(
        id="maths", kind="adapter", parent="smol", root="smol", digest="d1", resident=True, pins=1
    ),
    ModelRecord(
        id="broken", kind="adapter", parent="smol", state="failed", reason="wrong base model"
    ),
)


def embed(text: str) -> Sequence[float]:
    return [math.sin(len(text) + i) for i in range(4)]


def service_of(script: Script, **changes: Any) -> Service:
    values: dict[str, Any] = {
        "answer": script.answer,
        "models": lambda: MODELS,
        "embedder": Embedder(name="words", dimensions=4, embed=embed, count_tokens=len),
        "versions": {"floe": "0.1.0", "engine": "scripted"},
    }
    return Service(**(values | changes))


class Tracked:
    """An app that lets a test wait until its calls have returned."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._returned = 0
        self._changed = threading.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            with self._changed:
                self._returned += 1
                self._changed.notify_all()

    def wait_for(self, calls: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._returned >= calls, timeout=WAIT_S)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[int]:
    """A real server on a free port of the loopback."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none"
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.up.wait(WAIT_S)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


Sent = list[dict[str, Any]]


def never(sent: Sent) -> bool:
    return False


class Caller:
    """A client by hand: POSTs once; leaves when told to, or once `leave` holds."""

    def __init__(self, app: ASGIApp, path: str, *, leave: Callable[[Sent], bool] = never) -> None:
        self.sent: Sent = []
        self._app = app
        self._path = path
        self._leave = leave
        self._left = asyncio.Event()

    def hang_up(self) -> None:
        self._left.set()

    async def post(self, body: bytes) -> Sent:
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not waiting:
                await self._left.wait()
                return {"type": "http.disconnect"}
            return waiting.pop()

        await self._app(self._scope(), receive, self.take)  # type: ignore[arg-type]
        return self.sent

    async def take(self, message: Any) -> None:
        self.sent.append(message)
        if self._leave(self.sent):
            self.hang_up()

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "state": {},
        }
