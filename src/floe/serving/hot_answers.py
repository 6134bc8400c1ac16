"""Public answers kept in memory, to be given again to the same question or to one very near it.

Off unless it has bytes to keep them in. D = the width of the router's embedding.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from floe.core.request import Request
from floe.core.route import Route
from floe.core.token import CachedAs, Event, Finished, Started, Token
from floe.core.verdict import Verdict

Vector = NDArray[np.float32]
_ENTRY_BYTES = 2_000
_TOKEN_BYTES = 600
_TOP_BYTES = 200
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Judges:
    """What decides whether an answer may be given again.

    `count_prompt` gives the tokens of a request's prompt, `embed` a unit vector (D,) or zeros.
    """

    inspect: Callable[[Request], Verdict]
    choose: Callable[[Request], Route]
    count_prompt: Callable[[Request], int]
    embed: Callable[[str], Vector]


@dataclass(frozen=True, kw_only=True)
class _Key:
    """Everything that shapes an answer but the text that the router looks at."""

    route: tuple[tuple[str, float], ...]
    asked: str


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept:
    """One answer; `numbers` and `topic_D` are of the text that was asked about."""

    started: Started
    tokens: tuple[Token, ...]
    finished: Finished
    key: _Key
    numbers: tuple[str, ...]
    topic_D: Vector | None
    size_bytes: int
    until_s: float


class HotAnswers:
    """`Service.answer` with a memory: least recently used out first, nothing older than its time.

    Only answers that would come out the same are kept (temperature 0, or a seed) and only under
    the verdict "allow": a private request neither fills the memory nor is answered from it. What
    makes two requests equal: the adapters they are routed to, the model, the sampling, the mix,
    the tenant, whether the cloud may help and how long tokens wait, and every text (their digest
    is kept, not they). With a `cosine` above 0 the text that the router looks at may differ, if
    its vector is as near as that and the numbers in it are the same. For one event loop.
    """

    def __init__(
        self,
        answer: Callable[[Request], AsyncGenerator[Event, None]],
        *,
        judges: Judges,
        model_digest: str,
        most_bytes: int,
        ttl_s: float,
        cosine: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer, self._judges, self._model_digest = answer, judges, model_digest
        self._most_bytes, self._ttl_s, self._cosine = most_bytes, ttl_s, cosine
        self._now_s = now_s
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._counts = dict.fromkeys(("exact_hits", "semantic_hits", "misses", "evictions"), 0)

    def counters(self) -> Mapping[str, float]:
        """Figures for /metrics."""
        totals = {f"hot_answers_{name}_total": float(n) for name, n in self._counts.items()}
        return totals | {
            "hot_answers_bytes": float(self._bytes),
            "hot_answers_entries": float(len(self._kept)),
        }

    async def __call__(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of a kept answer, else those of `answer`, which are kept where they may be."""
        if not _repeatable(request):
            async with aclosing(self._answer(request)) as events:
                async for event in events:
                    yield event
            return
        hit = await self._found(request)
        self._counts["misses" if hit is None else f"{hit[0].cached}_hits"] += 1
        if hit is not None:
            started, kept = hit
            yield started
            for token in kept.tokens:
                yield token
            yield kept.finished
            return
        events_seen: list[Event] = []
        async with aclosing(self._answer(request)) as events:
            async for event in events:
                events_seen.append(event)
                yield event
        self._keep(request, events_seen)

    async def _found(self, request: Request) -> tuple[Started, _Kept] | None:
        self._drop_old()
        if not self._kept:
            return None
        route = await asyncio.to_thread(self._judges.choose, request)
        key = self._key(request, route)
        digest = _digest(key, request.topic())
        same = self._kept.get(digest)
        if same is not None:
            return self._given(digest, same, route, "exact", same.started)
        if self._cosine <= 0.0:
            return None
        return await self._near(request, key, route)

    async def _near(
        self, request: Request, key: _Key, route: Route
    ) -> tuple[Started, _Kept] | None:
        topic = request.topic()
        topic_D = self._judges.embed(topic)
        numbers = tuple(_NUMBER.findall(topic))
        near = [
            (float(kept.topic_D @ topic_D), digest)
            for digest, kept in self._kept.items()
            if kept.key == key and kept.numbers == numbers and kept.topic_D is not None
        ]
        cosine, digest = max(near, default=(0.0, ""))
        if not digest or cosine < self._cosine:
            return None
        verdict = await asyncio.to_thread(self._judges.inspect, request)
        kept = self._kept.get(digest)
        if not verdict.may_leave or kept is None:
            return None
        prompt_tokens = self._judges.count_prompt(request)
        started = replace(kept.started, verdict=verdict, prompt_tokens=prompt_tokens)
        return self._given(digest, kept, route, "semantic", started)

    def _given(
        self, digest: str, kept: _Kept, route: Route, how: CachedAs, started: Started
    ) -> tuple[Started, _Kept]:
        """The same answer under its own start; nothing was read, and nothing sent, for it."""
        self._kept.move_to_end(digest)
        started = replace(started, route=route, cached=how)
        tokens = started.prompt_tokens
        finished = replace(kept.finished, cached_tokens=tokens, cloud_asked=0)
        return started, replace(kept, finished=finished)

    def _keep(self, request: Request, events: Sequence[Event]) -> None:
        if len(events) < 2:
            return
        started, finished = events[0], events[-1]
        tokens = tuple(e for e in events if isinstance(e, Token))
        if not isinstance(started, Started) or not isinstance(finished, Finished):
            return
        if started.verdict.action != "allow" or finished.ended:
            return
        if started.cloud and not finished.fused_tokens + finished.cloud_tokens:
            return  # the cloud was to help and did not: the next answer may be a better one
        size_bytes = _ENTRY_BYTES + sum(map(_size_bytes, tokens))
        if size_bytes > self._most_bytes:
            return
        key, topic = self._key(request, started.route), request.topic()
        digest = _digest(key, topic)
        self._remove(digest)
        self._kept[digest] = _Kept(
            started=started,
            tokens=tokens,
            finished=finished,
            key=key,
            numbers=tuple(_NUMBER.findall(topic)) if self._cosine > 0.0 else (),
            topic_D=self._judges.embed(topic) if self._cosine > 0.0 else None,
            size_bytes=size_bytes,
            until_s=self._now_s() + self._ttl_s,
        )
        self._bytes += size_bytes
        while self._bytes > self._most_bytes:
            self._remove(next(iter(self._kept)))
            self._counts["evictions"] += 1

    def _drop_old(self) -> None:
        for digest in [d for d, kept in self._kept.items() if kept.until_s <= self._now_s()]:
            self._remove(digest)

    def _remove(self, digest: str) -> None:
        kept = self._kept.pop(digest, None)
        if kept is not None:
            self._bytes -= kept.size_bytes

    def _key(self, request: Request, route: Route) -> _Key:
        sampling, budgets = request.sampling, request.budgets
        asked = {
            "model": [self._model_digest, request.model],
            "lora": [[a.name, a.scale] for a in request.lora],
            "tenant": request.tenant,
            "cloud": [request.cloud, budgets.token_ms, budgets.first_token_ms],
            "top": request.top_log_probs,
            "sampling": [
                *(sampling.max_tokens, sampling.fits_room, sampling.temperature),
                *(sampling.top_p, sampling.seed, sampling.stop),
            ],
            "around": _around(request),
        }
        data = json.dumps(asked, sort_keys=True).encode()
        return _Key(route=route.key, asked=hashlib.sha256(data).hexdigest())


def _repeatable(request: Request) -> bool:
    """Whether the same request draws the same answer again."""
    return request.sampling.temperature == 0.0 or request.sampling.seed is not None


def _around(request: Request) -> list[list[str]]:
    """Every text but the one the router looks at, with its role, in order."""
    if request.prompt is not None:
        return [["prompt"]]
    users = [i for i, m in enumerate(request.messages) if m.role == "user"]
    topic_at = users[-1] if users else -1
    return [
        [m.role] if i == topic_at else [m.role, m.content] for i, m in enumerate(request.messages)
    ]


def _digest(key: _Key, topic: str) -> str:
    data = json.dumps([key.route, key.asked, topic]).encode()
    return hashlib.sha256(data).hexdigest()


def _size_bytes(token: Token) -> int:
    """What a token takes in memory, rather too much than too little."""
    top = sum(_TOP_BYTES + len(t.data) for t in token.draw.top)
    return _TOKEN_BYTES + len(token.draw.data) + 4 * len(token.text) + top
