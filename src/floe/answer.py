"""A request's life: verdict, route, lease, session, cloud, fusion, stream."""

from __future__ import annotations

import asyncio
import time
from asyncio import wrap_future
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from floe.core.advice import Advice, Advise, Drafting, Question
from floe.core.deadline import Deadline
from floe.core.errors import BadAdapter, NotSent
from floe.core.outcome import Outcome
from floe.core.request import Request
from floe.core.route import Route, TooLarge
from floe.core.text import TextStream
from floe.core.timing import RequestWatch, Watch, unwatched
from floe.core.token import Draw, Event, Finished, Started, Token
from floe.core.verdict import Verdict
from floe.engine.base import AdapterHandle, Engine, FloatArray, Session

Adapters = Sequence[tuple[AdapterHandle, float]]


class Gate(Protocol):
    """May this text leave the device? Never raises; in doubt the answer is local."""

    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = ...) -> Verdict: ...

    def inspect_draft(self, text: str, *, tenant: str = ...) -> Verdict: ...


class Router(Protocol):
    """Which adapters answer. Raises NotFound for an unknown name."""

    def choose(self, request: Request) -> Route: ...


class AdapterCache(Protocol):
    """Adapters in the engine's memory, pinned while the block runs."""

    def lease(
        self, route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AbstractAsyncContextManager[Adapters]: ...


class Cloud(Protocol):
    """The LLM's endpoint."""

    @property
    def name(self) -> str: ...

    def open(self, request: Request) -> AbstractAsyncContextManager[Advise]:
        """A conversation with the cloud about one request; sends nothing yet."""
        ...

    async def close(self) -> None:
        """Give connections back; no conversation is open any more."""
        ...


class Fuse(Protocol):
    """Draw tokens from the mix of both models until the end or `max_tokens`."""

    def __call__(
        self,
        request: Request,
        first_log_probs_V: asyncio.Future[FloatArray],
        drafting: Drafting,
        advise: Advise | None,
    ) -> AsyncGenerator[Draw, None]: ...


class Mask(Protocol):
    """What may leave under a `mask` verdict: the request, and advice about its answer."""

    def __call__(
        self, request: Request, verdict: Verdict
    ) -> tuple[Request, Callable[[Advise], Advise]]: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a request needs; without `mask`, what would be masked stays here.

    `learn` hears of every answer that came to its end, on the loop's thread; `watch` of each while
    it runs. `spare` may make a request and its route cheaper.
    """

    gate: Gate
    router: Router
    adapters: AdapterCache
    engine: Engine
    encode: Callable[[Request], list[int]]
    cloud: Cloud | None
    guard: Callable[[Advise, Callable[[str], Verdict]], Advise]
    fuse: Fuse
    mask: Mask | None = None
    learn: Callable[[Outcome], None] = lambda _outcome: None
    watch: Watch = unwatched
    spare: Callable[[Request, Route], tuple[Request, Route]] = lambda request, route: (
        request,
        route,
    )


async def answer(request: Request, parts: Parts) -> AsyncGenerator[Event, None]:
    """Yield a start, the tokens of the answer and an end; ask the cloud only if it may see it.

    Closing the generator at any point stops the work and gives session and lease back; so does
    the request's deadline, which ends the answer as it is then.

    Raises:
        Busy: the deadline came before the start.
    """
    deadline, watch = Deadline(request.budgets.deadline_ms), _Watch()
    came_s = time.monotonic()
    async with AsyncExitStack() as stack:
        inspecting = asyncio.ensure_future(
            asyncio.to_thread(parts.gate.inspect, request.texts(), tenant=request.tenant)
        )
        stack.callback(inspecting.cancel)
        route = await asyncio.to_thread(parts.router.choose, request)
        request, route = parts.spare(request, route)
        prompt = parts.encode(request)
        request = _fitted(request, room_tokens=parts.engine.info.context_tokens - len(prompt))
        sampling = request.sampling
        async with deadline.beginning():
            with watch.waiting():
                route, adapters = await _leased(stack, parts, request, route)
            session = await _session(parts.engine, adapters, prompt, sampling.max_tokens)
        stack.callback(session.close)
        heard = parts.watch(
            request, prompt_tokens=len(prompt), adapters=len(route.shares), came_s=came_s
        )
        stack.callback(heard.ended)
        first_log_probs_V = _told(heard, wrap_future(session.submit(prompt)))
        verdict = await inspecting  # the SLM is reading already: only the cloud waits for this
        sent, masked = _outgoing(request, verdict, parts.mask)
        cloud = parts.cloud if request.cloud else None
        asked, advise = _Asked(), None
        if cloud is not None and sent is not None:
            opened = await stack.enter_async_context(cloud.open(sent))
            inspect_draft = partial(parts.gate.inspect_draft, tenant=request.tenant)
            advise = masked(parts.guard(asked.counting(opened), inspect_draft))
        yield Started(
            verdict=verdict,
            route=route,
            prompt_tokens=len(prompt),
            cloud=cloud.name if cloud is not None and advise is not None else "",
        )

        drafting = _drafting(session, route, verdict, heard)
        draws = parts.fuse(request, first_log_probs_V, drafting, advise)
        text = TextStream(sampling.stop)
        count = {"edge": 0, "fused": 0, "cloud": 0}
        async with aclosing(draws), aclosing(deadline.until(draws)) as in_time:
            async for draw in in_time:
                count[draw.origin] += 1
                watch.drawn(draw)
                heard.drawn()
                yield Token(draw=draw, text=text.feed(draw.data))
                if text.stopped:
                    break
        total = sum(count.values())
        ended = text.stopped or (total < sampling.max_tokens and not deadline.cut)
        parts.learn(watch.outcome(request, route))
        yield Finished(
            reason="stop" if ended else "length",
            ended="deadline" if deadline.cut else "",
            text=text.finish(),
            completion_tokens=total,
            fused_tokens=count["fused"],
            cloud_tokens=count["cloud"],
            cached_tokens=session.cached_tokens,
            cloud_asked=asked.count,
        )


class _Watch:
    """What an answer cost and how the cloud saw it."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._wait_ms = 0.0
        self._first_token_ms: float | None = None
        self._tokens = 0
        self._cloud_log_probs: list[float] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for adapters."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._wait_ms += 1000 * (time.perf_counter() - began_s)

    def drawn(self, draw: Draw) -> None:
        """Another token."""
        self._tokens += 1
        if self._first_token_ms is None:
            self._first_token_ms = self._passed_ms()
        if draw.cloud_log_prob is not None:
            self._cloud_log_probs.append(draw.cloud_log_prob)

    def outcome(self, request: Request, route: Route) -> Outcome:
        """What became of the request."""
        said = self._cloud_log_probs
        return Outcome(
            request_id=request.id,
            tenant=request.tenant,
            route=route,
            topic=request.topic(),
            wait_ms=self._wait_ms,
            first_token_ms=self._first_token_ms,
            total_ms=self._passed_ms(),
            completion_tokens=self._tokens,
            agreement=sum(said) / len(said) if said else None,
            agreement_tokens=len(said),
        )

    def _passed_ms(self) -> float:
        return 1000 * (time.perf_counter() - self._started_s)


class _Asked:
    """How many questions of one answer really went to the cloud."""

    def __init__(self) -> None:
        self.count = 0

    def counting(self, advise: Advise) -> Advise:
        """`advise`, each call counted; one still out or given up counts, one not sent does not."""

        async def counted(question: Question) -> tuple[Advice, ...]:
            self.count += 1
            try:
                return await advise(question)
            except NotSent:
                self.count -= 1
                raise

        return counted


async def _leased(
    stack: AsyncExitStack, parts: Parts, request: Request, route: Route
) -> tuple[Route, Adapters]:
    """The route's adapters; a routed request goes on without a damaged one, or one too many."""
    tokens = request.sampling.max_tokens
    while True:
        try:
            lease = parts.adapters.lease(route, expected_tokens=tokens, tenant=request.tenant)
            return route, await stack.enter_async_context(lease)
        except TooLarge as error:
            if route.how != "routed" or not error.fitting.shares:
                raise
            route = error.fitting
        except BadAdapter:
            if route.how != "routed":
                raise
            again = await asyncio.to_thread(parts.router.choose, request)
            if again.key == route.key:  # the router knows no better
                raise
            route = again


def _drafting(session: Session, route: Route, verdict: Verdict, heard: RequestWatch) -> Drafting:
    """The SLM's side of the answer, with what fusion may know of the request."""

    def step(token: int) -> asyncio.Future[FloatArray]:
        return _told(heard, wrap_future(session.submit([token])))

    def feed_many(tokens: Sequence[int]) -> asyncio.Future[FloatArray]:
        return wrap_future(session.submit(tokens, every=True))

    return Drafting(
        step=step,
        rollback=session.rollback,
        feed_many=feed_many,
        route_confidence=min(1.0, max((s.weight for s in route.shares), default=0.0)),
        masked=verdict.action == "mask",
    )


def _told(heard: RequestWatch, coming: asyncio.Future[FloatArray]) -> asyncio.Future[FloatArray]:
    """The same future; who listens hears of its result."""

    def tell(done: asyncio.Future[FloatArray]) -> None:
        if not done.cancelled() and done.exception() is None:
            heard.log_probs(done.result())

    coming.add_done_callback(tell)
    return coming


def _outgoing(
    request: Request, verdict: Verdict, mask: Mask | None
) -> tuple[Request | None, Callable[[Advise], Advise]]:
    """What of the request may leave (None = nothing), and how its answer is spoken of."""
    if verdict.action == "mask" and mask is not None:
        return mask(request, verdict)
    return request if verdict.may_leave else None, lambda advise: advise


def _fitted(request: Request, *, room_tokens: int) -> Request:
    """The request with `max_tokens` cut to the room left, if nobody asked for a number."""
    sampling = request.sampling
    if not sampling.fits_room or not 0 < room_tokens < sampling.max_tokens:
        return request
    return replace(request, sampling=replace(sampling, max_tokens=room_tokens))


async def _session(
    engine: Engine, adapters: Adapters, prompt: Sequence[int], max_tokens: int
) -> Session:
    """A session when its turn comes; one that arrives after a cancellation is given back."""
    waiting = engine.session(adapters, prompt=prompt, max_tokens=len(prompt) + max_tokens)
    try:
        return await wrap_future(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(waiting: Future[Session]) -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().close()
