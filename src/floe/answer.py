"""A request's life: verdict, route, lease, session, cloud, fusion, stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Protocol

from floe.core.advice import Advise
from floe.core.request import Request
from floe.core.route import Route
from floe.core.text import TextStream
from floe.core.token import Draw, Event, Finished, Started, Token
from floe.core.verdict import Verdict
from floe.engine.base import AdapterHandle, Engine, FloatArray

Adapters = Sequence[tuple[AdapterHandle, float]]


class Gate(Protocol):
    """May this text leave the device? Never raises; in doubt the answer is local."""

    def inspect(self, texts: Sequence[tuple[str, str]]) -> Verdict: ...

    def inspect_draft(self, text: str) -> Verdict: ...


class Router(Protocol):
    """Which adapters answer. Raises NotFound for an unknown name."""

    def choose(self, request: Request) -> Route: ...


class AdapterCache(Protocol):
    """Adapters in the engine's memory, pinned while the block runs."""

    def lease(self, route: Route) -> AbstractAsyncContextManager[Adapters]: ...


class Cloud(Protocol):
    """The LLM's endpoint."""

    @property
    def name(self) -> str: ...

    def open(self, request: Request) -> AbstractAsyncContextManager[Advise]:
        """A conversation with the cloud about one request; sends nothing yet."""
        ...


class Fuse(Protocol):
    """Draw tokens from the mix of both models until the end or `max_tokens`."""

    def __call__(
        self,
        request: Request,
        first_log_probs_V: FloatArray,
        step: Callable[[int], asyncio.Future[FloatArray]],
        advise: Advise | None,
    ) -> AsyncGenerator[Draw, None]: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a request needs."""

    gate: Gate
    router: Router
    adapters: AdapterCache
    engine: Engine
    encode: Callable[[Request], list[int]]
    cloud: Cloud | None
    guard: Callable[[Advise, Callable[[str], Verdict]], Advise]
    fuse: Fuse
