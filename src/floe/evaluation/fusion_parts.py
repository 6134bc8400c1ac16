"""What the fusion benchmark measures one by one: rates, waits, ends, exactness, first tokens."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from floe.answer import Fuse, Parts, answer
from floe.cloud.client import record_nothing
from floe.cloud.logits import LogitCloud
from floe.core.advice import Advise
from floe.core.errors import FloeError
from floe.core.request import Message, Request
from floe.core.token import Started, Token
from floe.engine.base import Engine
from floe.evaluation.fusion_cloud import CloudRecord, HeldLoop, Traffic, replayed
from floe.evaluation.fusion_runs import Pair, Streamed, stream
from floe.evaluation.netem import Network, through

COMPUTE_MS = 30.0
_TRIES = 4
_OPENING = 6  # one more than the failures in a row that open the client's breaker
Side = tuple[str, Fuse, bool]
"""Its name, how it draws, and whether it asks the cloud."""


@dataclass(kw_only=True)
class Tally:
    """Streams of one side, pooled."""

    tokens: int = 0
    decode_tokens: int = 0
    decode_s: float = 0.0
    first_s: float = 0.0
    streams: int = 0
    steps: int = 0
    asked_tokens: int = 0
    corrected_tokens: int = 0
    questions: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    misses: int = 0

    def add(self, streamed: Streamed, traffic: Traffic) -> None:
        """Count one stream of two tokens or more; a shorter one has no rate."""
        origins = Counter(d.origin for d in streamed.draws)
        self.tokens += len(streamed.draws)
        self.decode_tokens += len(streamed.draws) - 1
        self.decode_s += streamed.decode_s
        self.first_s += streamed.times_s[0]
        self.streams += 1
        self.steps += streamed.steps
        self.asked_tokens += origins["fused"] + origins["cloud"]
        self.corrected_tokens += origins["cloud"]
        self.questions += traffic.questions
        self.up_bytes += traffic.up_bytes
        self.down_bytes += traffic.down_bytes

    @property
    def tokens_s(self) -> float | None:
        """Tokens per second behind the first one."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else None


def in_held_time(work: Callable[[], Any]) -> Any:
    """The result of a coroutine function on a loop whose time stops for the cloud's misses."""
    with asyncio.Runner(loop_factory=HeldLoop) as runner:
        return runner.run(work())


async def tally(
    pair: Pair,
    sides: Sequence[Side],
    requests: Sequence[Request],
    network: Network,
    *,
    shared: bool,
) -> dict[str, Tally]:
    """Every side over every request, side by side, so that other load hits all alike."""
    out = {name: Tally() for name, _, _ in sides}
    for request in requests:
        for side in sides:
            for _ in range(_TRIES):
                streamed, traffic, misses = await _timed(pair, side, request, network, shared)
                if not misses:
                    break
            out[side[0]].misses += misses
            if len(streamed.draws) > 1:
                out[side[0]].add(streamed, traffic)
    return out


async def _timed(
    pair: Pair, side: Side, request: Request, network: Network, shared: bool
) -> tuple[Streamed, Traffic, int]:
    """One stream, and how many of its questions were not on record.

    A miss lets a step of the SLM end in no time, so a stream with one is drawn again.
    """
    _, fuse, asks = side
    record, traffic = pair.record(request), Traffic()
    base = record.live() if shared else replayed(record, compute_ms=COMPUTE_MS)
    counted = traffic.counted(base, request, top_k=pair.top_k)
    advise = through(counted, network, seed=request.sampling.seed or 0)
    before = record.misses
    streamed = await stream(pair, fuse, request, advise if asks else None)
    return streamed, traffic, record.misses - before


async def warm(pair: Pair, sides: Sequence[Side], requests: Sequence[Request]) -> None:
    """Fill the records: each side once over each request, with no delays."""
    for request in requests:
        for _, fuse, asks in sides:
            if asks:
                await stream(pair, fuse, request, replayed(pair.record(request), compute_ms=0.0))


async def late_share(
    pair: Pair, fuse: Fuse, requests: Sequence[Request], *, budget_ms: float, step_ms: float
) -> tuple[int, int]:
    """Late tokens and all tokens behind the first, while one exchange in five stalls for 2 s."""
    network = Network(rtt_ms=80.0, jitter_ms=40.0, loss=0.02, stalls=0.2, stall_ms=2000.0)
    late = total = 0
    for request in requests:
        base = replayed(pair.record(request), compute_ms=COMPUTE_MS)
        advise = through(base, network, seed=request.sampling.seed or 0)
        streamed = await stream(pair, fuse, request, advise)
        late += streamed.late(budget_ms / 1000, step_ms / 1000)
        total += len(streamed.draws) - 1
    return late, total


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """The URL of a service on loopback that takes everything and never answers."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_writers:
            writer.close()


async def dead_ratios(
    pair: Pair, fuse: Fuse, opening: Fuse, requests: Sequence[Request]
) -> dict[str, list[float]]:
    """Seconds of whole answers with a black-holed cloud, each beside the same without a cloud.

    `first`: the first request of all, which knows nothing of the cloud's end. `later`: those after
    the client's breaker has opened, brought about by requests through `opening`, which waits
    less. `first_alone` and `later_alone`: the same requests without a cloud.
    """
    out: dict[str, list[float]] = {k: [] for k in ("first", "first_alone", "later", "later_alone")}
    async with black_hole() as url:
        for key, some in (("first", requests[:1]), ("later", requests)):
            cloud = LogitCloud(url=url, first_budget_ms=100.0, on_send=record_nothing)
            for n in range(_OPENING if key == "later" else 0):
                short = replace(requests[0], sampling=replace(requests[0].sampling, max_tokens=2))
                async with cloud.open(replace(short, id=f"opening-{n}")) as advise:
                    await stream(pair, opening, short, advise)
            for request in some:
                out[f"{key}_alone"].append((await stream(pair, fuse, request, None)).times_s[-1])
                async with cloud.open(request) as advise:
                    out[key].append((await stream(pair, fuse, request, advise)).times_s[-1])
            await cloud.close()
    return out


async def dead_midway(
    pair: Pair, fuse: Fuse, requests: Sequence[Request], *, after: int = 4
) -> list[float]:
    """Whole answers over the SLM's alone, with a cloud that answers `after` questions and dies."""
    out = []
    for request in requests:
        base, n_asked = replayed(pair.record(request), compute_ms=COMPUTE_MS), 0
        alive, dead = through(base, Network(rtt_ms=80.0)), through(base, Network(dead=True))

        async def advise(question: Any, alive: Advise = alive, dead: Advise = dead) -> Any:
            nonlocal n_asked
            n_asked += 1
            return await (alive if n_asked <= after else dead)(question)

        alone_s = (await stream(pair, fuse, request, None)).times_s[-1]
        out.append((await stream(pair, fuse, request, advise)).times_s[-1] / alone_s)
    return out


async def exactness(
    pair: Pair,
    twin: Engine,
    speculative: Fuse,
    by_token: Fuse,
    request: Request,
    *,
    seeds: Sequence[int],
) -> dict[str, float]:
    """Total variation of speculative against token-by-token streams, one tokenizer.

    The cloud is the SLM itself (`twin`, an engine of its own) under another system prompt: a real
    model, another distribution.
    `coupled`: the share of streams that differ when both sides have the same seeds, which bounds
    the total variation from above. `independent`: the distance of the first tokens'
    frequencies with seeds of their own; `noise`: the same between two halves of all of them.
    """
    told = Message(role="system", content="Answer in French, very formally.")
    other = replace(request, messages=(told, *request.messages))
    record = CloudRecord(engine=twin, prompt=pair.encode(other), top_k=pair.top_k, exact=True)
    await stream(pair, by_token, request, None)  # the prompt's rows are the same from here on
    streams: dict[str, list[tuple[int, ...]]] = {"a": [], "b": [], "c": []}
    for seed in seeds:
        for key, fuse, own in (("a", speculative, seed), ("b", by_token, seed),
                               ("c", by_token, seed + 1_000_003)):  # fmt: skip
            asked = replace(request, sampling=replace(request.sampling, seed=own))
            found = await stream(pair, fuse, asked, replayed(record, compute_ms=0.0))
            streams[key].append(found.ids)
    differ = statistics.fmean(a != b for a, b in zip(streams["a"], streams["b"], strict=True))
    a, c = ([s[:1] for s in streams[key]] for key in ("a", "c"))
    return {"coupled": differ, "independent": distance(a, c), "noise": _noise(a + c)}


def distance(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Total variation between the frequencies of two samples."""
    p, q = Counter(a), Counter(b)
    return 0.5 * sum(abs(p[x] / len(a) - q[x] / len(b)) for x in p.keys() | q.keys())


def _noise(both: Sequence[Any], *, seed: int = 0, draws: int = 200) -> float:
    rng, half = np.random.default_rng(seed), len(both) // 2
    orders = (rng.permutation(len(both)) for _ in range(draws))
    return statistics.fmean(
        distance([both[i] for i in o[:half]], [both[i] for i in o[half:]]) for o in orders
    )


async def first_tokens(
    parts: Parts, requests: Sequence[Request]
) -> tuple[list[float], list[float]]:
    """Seconds to the first token of private requests: through `answer`, and of the bare engine.

    Both sides begin at the request and encode it; prompts of one pair are new to the engine.

    Raises:
        FloeError: the gate lets such a request leave.
    """
    ours: list[float] = []
    bare: list[float] = []
    for n, request in enumerate(requests):
        if n % 2:
            ours.append(await _answered_s(parts, request))
        else:
            bare.append(await asyncio.to_thread(_bare_s, parts, request))
    return ours, bare


async def _answered_s(parts: Parts, request: Request) -> float:
    began_s = time.perf_counter()
    events = answer(request, parts)
    try:
        async for event in events:
            if isinstance(event, Started) and event.verdict.action != "local":
                raise FloeError("the benchmark's private request was not held back")
            if isinstance(event, Token):
                return time.perf_counter() - began_s
    finally:
        await events.aclose()
    raise FloeError("the benchmark's private request got no token")


def _bare_s(parts: Parts, request: Request) -> float:
    began_s = time.perf_counter()
    prompt = parts.encode(request)
    session = parts.engine.session(prompt=prompt, max_tokens=len(prompt) + 8).result()
    try:
        int(np.argmax(session.feed(prompt)))
        return time.perf_counter() - began_s
    finally:
        session.close()
