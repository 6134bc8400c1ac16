"""One stream of the fusion benchmark: its tokens, when each came and when the SLM had it.

V = the SLM's real ids.
"""

from __future__ import annotations

import asyncio
from asyncio import wrap_future
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floe.answer import Fuse
from floe.core.advice import Advise, Drafting
from floe.core.request import Message, Request, Sampling
from floe.core.token import Draw
from floe.engine.base import Engine, Session
from floe.evaluation.fusion_cloud import CloudRecord
from floe.fusion.align import Alignment

FloatArray = NDArray[np.float32]
Encode = Callable[[Request], list[int]]

PROMPTS = (
    "A baker makes 14 trays of 6 rolls. He sells 59 rolls and eats 2. How many rolls are left?",
    "Write a Python function that returns the second largest number of a list.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain.",
    "Write a Python function that counts the vowels in a string.",
    "Tom has 3 boxes with 12 pencils each. He gives a third of them away. How many does he keep?",
    "Explain in a few sentences why the sky is blue.",
)
"""Public questions of the two kinds that are measured, and a plain one."""

PRIVATE = (
    "The patient Maria Huber, born on 3 May 1961, telephone +43 660 1234567, insurance number "
    "1237 010180, was admitted with chest pain. Her card 4111 1111 1111 1111 was charged. Write a "
    "short letter to her family doctor that asks for the last laboratory values, names the "
    "medication that she takes and proposes two dates for a follow-up visit next week."
)
"""What may not leave; the numbers are made up, the card's is a published test number."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both models, each with one thread, and how prompts and tokens of one become the other's."""

    edge: Engine
    cloud: Engine
    encode: Encode
    encode_cloud: Encode
    alignment: Alignment
    top_k: int = 64
    records: dict[str, CloudRecord] = field(default_factory=dict)

    def record(self, request: Request) -> CloudRecord:
        """The cloud's record for this request's prompt, one for all runs."""
        key = request.topic()
        if key not in self.records:
            own, other = self.edge.info.tokenizer_digest, self.cloud.info.tokenizer_digest
            self.records[key] = CloudRecord(
                engine=self.cloud,
                prompt=self.encode_cloud(request),
                top_k=self.top_k,
                tokenizer="" if own == other else other,
            )
        return self.records[key]


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A stream in seconds since its start; `ready_s` is when the SLM had each token's row."""

    draws: tuple[Draw, ...]
    times_s: tuple[float, ...]
    ready_s: tuple[float, ...]
    steps: int

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.times_s[-1] - self.times_s[0]

    @property
    def ids(self) -> tuple[int, ...]:
        """The stream's tokens."""
        return tuple(d.id for d in self.draws)

    def late(self, budget_s: float, step_s: float) -> int:
        """Tokens after the first that came later than the budget and one step of the SLM.

        A token's budget begins when the SLM had it, or with the token before if that was later.
        """
        before = zip(self.times_s, self.times_s[1:], self.ready_s[1:], strict=False)
        return sum(now - max(last, ready) > budget_s + step_s for last, now, ready in before)


class _Steps:
    """The SLM's side of a stream, with the time at which each of its rows was there."""

    def __init__(self, session: Session) -> None:
        self._session, self._n_fed = session, 0
        self.ready_s: dict[int, float] = {}
        self.steps = 0

    def step(self, token: int) -> asyncio.Future[FloatArray]:
        self.steps, self._n_fed = self.steps + 1, self._n_fed + 1
        return self.noted(wrap_future(self._session.submit([token])))

    def noted(self, future: asyncio.Future[FloatArray]) -> asyncio.Future[FloatArray]:
        n, loop = self._n_fed, asyncio.get_running_loop()
        future.add_done_callback(lambda _: self.ready_s.__setitem__(n, loop.time()))
        return future

    def rollback(self, n_tokens: int) -> None:
        self._n_fed -= n_tokens
        self._session.rollback(n_tokens)


async def stream(pair: Pair, fuse: Fuse, request: Request, advise: Advise | None) -> Streamed:
    """Draw one answer; the prompt is fed inside the time that is measured."""
    loop, prompt = asyncio.get_running_loop(), pair.encode(request)
    room = len(prompt) + request.sampling.max_tokens
    session = await wrap_future(pair.edge.session(prompt=prompt, max_tokens=room))
    steps, times_s, draws = _Steps(session), [], []
    began_s = loop.time()
    try:
        first = steps.noted(wrap_future(session.submit(prompt)))
        drafting = Drafting(step=steps.step, rollback=steps.rollback)
        tokens: AsyncGenerator[Draw, None] = fuse(request, first, drafting, advise)
        async with aclosing(tokens):
            async for draw in tokens:
                draws.append(draw)
                times_s.append(loop.time() - began_s)
    finally:
        session.close()
    return Streamed(
        draws=tuple(draws),
        times_s=tuple(times_s),
        ready_s=tuple(
            steps.ready_s.get(n, began_s + released_s) - began_s
            for n, released_s in enumerate(times_s)
        ),
        steps=steps.steps,
    )


def asked(prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Request:
    """A request with one user message."""
    return Request(
        id=f"bench-{seed}",
        messages=(Message(role="user", content=prompt),),
        sampling=Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed),
    )
