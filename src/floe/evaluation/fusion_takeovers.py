"""The cloud ends at every token of a stream, in each way it can; the SLM must go on there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from floe.answer import Fuse
from floe.core.advice import Advice, Advise, Candidate, Drafting, Question
from floe.core.errors import CloudFailed
from floe.core.request import Request
from floe.core.token import Draw
from floe.evaluation.fusion_cloud import replayed
from floe.evaluation.fusion_runs import Pair, stream

End = Literal["cut", "stall", "garbage"]
ENDS: tuple[End, ...] = get_args(End)
_TIE = 0.05  # nats within which one pass and token by token may order two tokens differently


@dataclass(frozen=True, kw_only=True)
class Takeovers:
    """How many streams lost their cloud, and how many went on as the SLM alone would."""

    tried: int
    continued: int


async def takeovers(pair: Pair, fuse: Fuse, request: Request, *, positions: int) -> Takeovers:
    """Greedy streams, one for each end and each token position before `positions`."""
    tried = continued = 0
    for end in ENDS:
        for position in range(positions):
            tried += 1
            continued += await _goes_on(pair, fuse, request, end, position)
    return Takeovers(tried=tried, continued=continued)


async def _goes_on(pair: Pair, fuse: Fuse, request: Request, end: End, position: int) -> bool:
    watch = _Watch()
    base = replayed(pair.record(request), compute_ms=0.0)
    advise = ending(base, end, lambda: watch.n_released >= position)
    streamed = await stream(pair, watch.over(fuse), request, advise)
    ids, last = list(streamed.ids), [d.origin for d in streamed.draws]
    alone = [i for i in range(len(ids)) if i > position and last[i] == "edge"]
    return await asyncio.to_thread(_as_the_slm, pair, request, ids, alone)


def _as_the_slm(pair: Pair, request: Request, ids: list[int], places: list[int]) -> bool:
    """Whether the tokens at `places` are the SLM's best ones after all tokens before them."""
    prompt = pair.encode(request)
    session = pair.edge.session(prompt=prompt, max_tokens=len(prompt) + len(ids)).result()
    try:
        rows = session.feed([*prompt, *ids], every=True)[len(prompt) - 1 :]
    finally:
        session.close()
    is_end = ids and len(ids) < request.sampling.max_tokens
    eos = sorted(pair.edge.info.eos_ids)
    ended = not is_end or float(rows[len(ids)].max() - rows[len(ids)][eos].max()) <= _TIE
    best = all(float(np.max(rows[i]) - rows[i][ids[i]]) <= _TIE for i in places)
    return ended and best and bool(places or is_end)


def ending(advise: Advise, end: End, is_over: Callable[[], bool]) -> Advise:
    """`advise` until `is_over`, then an error, silence, or answers that fit no place."""

    async def ask(question: Question) -> tuple[Advice, ...]:
        found = await advise(question)
        if not is_over():
            return found
        if end == "cut":
            raise CloudFailed("the benchmark has cut the connection")
        if end == "stall":
            await asyncio.get_running_loop().create_future()
        odd = Candidate(data=b"\xff\xfe", log_prob=0.0)
        return (Advice(offset_bytes=len(question.text) + 7, candidates=(odd,)),)

    return ask


class _Watch:
    """Counts the tokens that a fuse has released."""

    def __init__(self) -> None:
        self.n_released = 0

    def over(self, fuse: Fuse) -> Fuse:
        """The same fuse, watched."""

        async def watched(
            request: Request,
            first_log_probs_V: asyncio.Future[NDArray[np.float32]],
            drafting: Drafting,
            advise: Advise | None,
        ) -> AsyncGenerator[Draw, None]:
            draws = fuse(request, first_log_probs_V, drafting, advise)
            try:
                async for draw in draws:
                    self.n_released += 1
                    yield draw
            finally:
                await draws.aclose()

        return watched
