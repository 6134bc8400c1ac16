"""Fused decoding, token by token: the SLM draws, the cloud advises while it answers in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advise, Drafting
from floe.core.request import Request
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.asking import Asking
from floe.fusion.carry import NOTHING, carry_after
from floe.fusion.drawing import Drawing
from floe.fusion.weigh import Standing, Weigh

FloatArray = NDArray[np.float32]


class Fuser:
    """`answer.Fuse`, a question for each token.

    `weight` is the SLM's share, a number or what decides it place by place (the number 1 = the
    SLM alone, and the cloud is not even asked). `budget_ms`
    is how long a token waits for the cloud once the SLM is ready, `first_budget_ms` the same for
    the first token, when the cloud still has the whole prompt to read.
    """

    def __init__(
        self,
        *,
        weight: float | Weigh,
        budget_ms: float,
        first_budget_ms: float,
        alignment: Alignment,
        eos_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._weight, self._alignment = weight, alignment
        self._budget_ms, self._first_budget_ms = budget_ms, first_budget_ms
        self._eos_ids, self._token_bytes = eos_ids, token_bytes

    async def __call__(
        self,
        request: Request,
        first_log_probs_V: asyncio.Future[FloatArray],
        drafting: Drafting,
        advise: Advise | None,
    ) -> AsyncGenerator[Draw, None]:
        """Yield tokens until the end token (not yielded) or `max_tokens`.

        Only what is needed is decoded and asked: the next step starts when the consumer wants
        the next token. Closing the generator cancels the step and the question that are out.
        `Draw.log_prob` and `Draw.top` are under the mix before temperature and top_p.

        Raises:
            FloeError: what the engine's step raised. The cloud's failures never end a stream.
        """
        drawing = Drawing(
            request,
            weight=self._weight,
            alignment=self._alignment,
            token_bytes=self._token_bytes,
            standing=Standing(route_confidence=drafting.route_confidence, masked=drafting.masked),
        )
        asking = Asking(advise) if advise is not None and self._weight != 1.0 else None
        text, edge = b"", first_log_probs_V
        budget_ms, carry = self._first_budget_ms, NOTHING
        try:
            for place in range(request.sampling.max_tokens):
                advice = None
                if asking and carry.needs_advice:
                    advice = await asking.advice(text, edge, budget_ms)
                advice = carry.joined(advice, len(text))
                draw = drawing.draw(await edge, advice, place)
                if draw.id in self._eos_ids:
                    return
                yield draw
                text, budget_ms = text + draw.data, self._budget_ms
                carry = carry_after(advice, draw.id, draw.data, self._alignment)
                if place + 1 < request.sampling.max_tokens:
                    edge = drafting.step(draw.id)
        finally:
            _drop(edge)
            if asking:
                await asking.close()


def _drop(edge: asyncio.Future[FloatArray]) -> None:
    """Cancel a step nobody waits for; read its error, which asyncio would else print."""
    if not edge.cancel() and not edge.cancelled():
        edge.exception()
