"""Fusion with a cloud that speaks along its own answer: its text is the draft, the SLM checks it.

An endpoint that returns `top_logprobs` of its own tokens cannot score a draft of the SLM's. So the
roles are exchanged: what the cloud has already said is fed to the SLM in one go, and each place is
drawn from the mix with the uniform number of that place. A proposal is kept where that draw gives
it, so the stream is token for token the one of `generate.Fuser`, whatever was proposed.

V = the SLM's real ids, T = tokens fed at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice, Advise, Drafting, Question
from floe.core.request import Request
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.asking import Asking
from floe.fusion.carry import NOTHING, carry_after
from floe.fusion.drawing import Drawing
from floe.fusion.speculate import Limits
from floe.fusion.weigh import Standing, Weigh

FloatArray = NDArray[np.float32]
_AHEAD_BYTES = 256
_FIRST_CHUNK_TOKENS = 4


class CloudDraftsFuser:
    """`answer.Fuse` for clouds that draft.

    `weight` is the SLM's share, a number or what decides it place by place (the number 1 = the
    SLM alone; the cloud is not asked). `tokenize` gives the SLM's tokens of bytes to come; a poor
    guess costs time, never a wrong token. At most `limits.lookahead_tokens` proposals are checked
    at once.

    Truncated tails: such an endpoint lists at most 20 tokens a place. With m the mass that is not
    among them, `Alignment.cloud_probs` gives m to the SLM's distribution over the unlisted ids
    (below the least listed one), and the mix that is drawn from is within total variation
    (1 - weight) m of the mix with the cloud's full distribution; the draws follow it exactly.
    """

    def __init__(
        self,
        *,
        weight: float | Weigh,
        limits: Limits,
        alignment: Alignment,
        eos_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
        tokenize: Callable[[bytes], Sequence[int]],
    ) -> None:
        self._weight, self._limits, self._alignment = weight, limits, alignment
        self._eos_ids, self._token_bytes, self._tokenize = eos_ids, token_bytes, tokenize

    async def __call__(
        self,
        request: Request,
        first_log_probs_V: asyncio.Future[FloatArray],
        drafting: Drafting,
        advise: Advise | None,
    ) -> AsyncGenerator[Draw, None]:
        """Yield tokens until the end token (not yielded) or `max_tokens`.

        A token waits for the cloud at most `budget_ms` once the SLM has it, and not at all while
        an older question is out; then it is the SLM's own. Closing cancels everything.

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
        heard = _Heard(advise) if advise is not None and self._weight != 1.0 else None
        limits = self._limits.within(request.budgets)
        checking = _Checking(first_log_probs_V, drafting, most=limits.lookahead_tokens)
        text, carry, budget_ms = b"", NOTHING, limits.first_budget_ms
        max_tokens = request.sampling.max_tokens
        try:
            for place in range(max_tokens):
                advice = None
                if heard is not None and carry.needs_advice:
                    advice = await heard.advice(text, checking.edge, budget_ms)
                advice = carry.joined(advice, len(text))
                draw = drawing.draw(await checking.log_probs(), advice, place)
                if draw.id in self._eos_ids:
                    return
                text, budget_ms = text + draw.data, limits.budget_ms
                carry = carry_after(advice, draw.id, draw.data, self._alignment)
                if place + 1 < max_tokens and not checking.kept(draw.id):
                    said = heard.after(text) if heard is not None else b""
                    room = min(max_tokens - place - 2, checking.chunk_tokens())
                    checking.feed(draw.id, self._proposals(said, room))
                yield draw
        finally:
            checking.drop()
            if heard is not None:
                await heard.close()

    def _proposals(self, said: bytes, most: int) -> list[int]:
        """At most `most` tokens of the SLM's that spell what the cloud has said."""
        out: list[int] = []
        for token in self._tokenize(said) if said and most > 0 else ():
            data = self._token_bytes(token)
            if len(out) == most or not data or not said.startswith(data):
                break
            out.append(token)
            said = said[len(data) :]
        return out


class _Checking:
    """The SLM's side: the place to be drawn now, and proposals fed behind it."""

    def __init__(self, first: asyncio.Future[FloatArray], drafting: Drafting, *, most: int) -> None:
        self.edge = first
        self._drafting, self._most = drafting, most
        self._chunk_tokens, self._n_kept = min(_FIRST_CHUNK_TOKENS, most), 0
        self._proposed: tuple[int, ...] = ()
        self._ahead: deque[tuple[int, FloatArray]] = deque()
        self._log_q_V: FloatArray | None = None

    async def log_probs(self) -> FloatArray:
        """The SLM's log-probabilities (V,) at this place."""
        if self._log_q_V is None:
            fed = await self.edge
            if self._proposed:
                self._log_q_V = fed[0]
                self._ahead.extend(zip(self._proposed, fed[1:], strict=True))
                self._proposed = ()
            else:
                self._log_q_V = fed
        return self._log_q_V

    def kept(self, token: int) -> bool:
        """Whether the drawn token had been proposed, so that the next place is there already."""
        if not self._ahead or self._ahead[0][0] != token:
            return False
        self._log_q_V = self._ahead.popleft()[1]
        self._n_kept += 1
        return True

    def chunk_tokens(self) -> int:
        """Proposals worth checking next: twice as many after a chunk that was kept whole.

        After a miss only one more than was kept, since the rest of a chunk is thrown away.
        """
        if self._ahead:
            self._chunk_tokens = self._n_kept + 1
        elif self._n_kept == self._chunk_tokens:
            self._chunk_tokens = min(self._most, 2 * self._chunk_tokens)
        self._n_kept = 0
        return self._chunk_tokens

    def feed(self, token: int, proposals: Sequence[int]) -> None:
        """Forget proposals that were not drawn; feed the drawn token and new ones."""
        if self._ahead:
            self._drafting.rollback(len(self._ahead))
            self._ahead.clear()
        self._log_q_V = None
        many = self._drafting.feed_many
        if proposals and many is not None:
            self._proposed = tuple(proposals)
            self.edge = many([token, *proposals])
        else:
            self.edge = self._drafting.step(token)

    def drop(self) -> None:
        """Cancel a step nobody waits for; read its error, which asyncio would else print."""
        if not self.edge.cancel() and not self.edge.cancelled():
            self.edge.exception()


class _Heard:
    """What the cloud has said so far: its text from the last answer on, and advice along it."""

    def __init__(self, advise: Advise) -> None:
        self._advise, self._asking = advise, Asking(self._ask)
        self._text = b""
        self._known: dict[int, Advice] = {}

    async def advice(
        self, text: bytes, edge: asyncio.Future[FloatArray], budget_ms: float
    ) -> Advice | None:
        """What the cloud says after `text`; asks only where that has not been heard."""
        if self._text.startswith(text):
            known = self._known.get(len(text))
            if known is not None:
                return known
            if len(text) < len(self._text):
                return None  # inside one of the cloud's tokens
        advice = await self._asking.advice(text, edge, budget_ms)
        return advice if advice is not None and advice.candidates else None

    def after(self, text: bytes) -> bytes:
        """What the cloud went on with after `text`, as far as it was heard."""
        return self._text[len(text) :] if self._text.startswith(text) else b""

    async def close(self) -> None:
        """Cancel the question that is out and wait until it is gone."""
        await self._asking.close()

    async def _ask(self, question: Question) -> tuple[Advice, ...]:
        found = await self._advise(replace(question, ahead_bytes=_AHEAD_BYTES))
        text, known = question.answer, {}
        for advice in found:
            if advice.offset_bytes != len(text):
                break  # what lies between was not said
            if advice.candidates:
                known[len(text)] = advice
            text += advice.said
        self._text, self._known = text, known
        return found
