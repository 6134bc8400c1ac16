"""Speculative fusion: the SLM drafts ahead, the cloud scores blocks, tokens are kept or corrected.

A draft is drawn with the uniform number of its place and checked with the same number, so the
stream is token for token the one that asking at every place would give, only sooner: a kept token
costs no round trip. While one block is being scored the next is drafted. V = the SLM's real ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice, Advise, Drafting, Question
from floe.core.errors import CloudFailed
from floe.core.request import Budgets, Request
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.carry import NOTHING, carry_after
from floe.fusion.drawing import Drawing
from floe.fusion.pace import Pace
from floe.fusion.weigh import QUIET, Network, Standing, Weigh

FloatArray = NDArray[np.float32]
FAILURES_TO_STOP = 3


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long tokens wait for the cloud, and how far drafts run ahead."""

    budget_ms: float
    first_budget_ms: float
    lookahead_tokens: int = 24
    questions: int = 6

    def within(self, budgets: Budgets) -> Limits:
        """These limits with the waits that one request asks for."""
        token_ms, first_ms = budgets.token_ms, budgets.first_token_ms
        return replace(
            self,
            budget_ms=self.budget_ms if token_ms is None else token_ms,
            first_budget_ms=self.first_budget_ms if first_ms is None else first_ms,
        )


@dataclass(frozen=True, kw_only=True)
class _Drafted:
    """A place of the answer that the SLM has filled and the stream has not released."""

    log_q_V: FloatArray
    id: int
    data: bytes
    start: int
    ready_s: float
    is_sure: bool


@dataclass(kw_only=True, eq=False)
class _Question:
    """A block at the cloud: places from byte `start` to byte `end`; `late` once it was missed."""

    task: asyncio.Future[tuple[Advice, ...]]
    start: int
    end: int
    sent_s: float
    late: bool = False


class SpeculativeFuser:
    """`answer.Fuse` with drafts and block scoring.

    `weight` is the SLM's share, a number or what decides it place by place (the number 1 = the
    SLM alone; the cloud is not asked). Where `is_sure` (of the SLM's log-probabilities) holds, the
    token is the SLM's own and the cloud is not asked about it. `network` tells how the road to the
    cloud is; it counts only where an answer is drawn at random without a seed, since a weight that
    depends on the clock cannot be drawn again.
    """

    def __init__(
        self,
        *,
        weight: float | Weigh,
        limits: Limits,
        alignment: Alignment,
        eos_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
        is_sure: Callable[[FloatArray], bool] | None = None,
        network: Callable[[], Network] | None = None,
    ) -> None:
        self._weight, self._limits, self._alignment = weight, limits, alignment
        self._is_sure, self._network = is_sure, network
        self._eos_ids, self._token_bytes = eos_ids, token_bytes

    async def __call__(
        self,
        request: Request,
        first_log_probs_V: asyncio.Future[FloatArray],
        drafting: Drafting,
        advise: Advise | None,
    ) -> AsyncGenerator[Draw, None]:
        """Yield tokens until the end token (not yielded) or `max_tokens`.

        A token is released when it is scored, or `budget_ms` after the SLM had it (or after the
        token before was released, if that was later), then as the SLM's own. A late score
        still serves the places behind it. Closing the generator cancels everything.

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
        stream = _Stream(
            drawing=drawing,
            alignment=self._alignment,
            eos_ids=self._eos_ids,
            limits=self._limits.within(request.budgets),
            max_tokens=request.sampling.max_tokens,
            drafting=drafting,
            advise=advise if self._weight != 1.0 else None,
            first=first_log_probs_V,
            is_sure=self._is_sure,
            network=self._network if _is_free(request) else None,
        )
        try:
            while not stream.is_over:
                while not stream.can_release():
                    await stream.progress()
                draw = stream.release()
                if draw.id in self._eos_ids:
                    return
                stream.advance()
                yield draw
        finally:
            await stream.close()


class _Stream:
    """One answer: `drafts` are places 0.. behind `text`, the first of them to be released next."""

    def __init__(
        self,
        *,
        drawing: Drawing,
        alignment: Alignment,
        eos_ids: frozenset[int],
        limits: Limits,
        max_tokens: int,
        drafting: Drafting,
        advise: Advise | None,
        first: asyncio.Future[FloatArray],
        is_sure: Callable[[FloatArray], bool] | None,
        network: Callable[[], Network] | None,
    ) -> None:
        self._network = network
        self._drawing, self._alignment, self._eos_ids = drawing, alignment, eos_ids
        self._is_sure = is_sure if advise is not None else None
        self._limits, self._max_tokens = limits, max_tokens
        self._drafting, self._advise = drafting, advise
        self._edge: asyncio.Future[FloatArray] | None = first
        self._edge_started_s = self._released_s = self._answered_s = self._now()
        self._undo: tuple[int, int] | None = None
        self._drafts: deque[_Drafted] = deque()
        self._questions: list[_Question] = []
        self._known: dict[int, Advice] = {}
        self._text, self._n_released, self._last_id = b"", 0, -1
        self._ends: list[int] = []
        self._gone: list[asyncio.Future[tuple[Advice, ...]]] = []
        self._asked_to = -1
        self._failures, self._carry, self._pace = 0, NOTHING, Pace(budget_ms=limits.budget_ms)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def is_over(self) -> bool:
        """As many tokens as were asked for."""
        return self._n_released >= self._max_tokens

    # --- releasing

    def can_release(self) -> bool:
        """Whether the first draft has all it will get, or its budget has ended."""
        if not self._drafts or self._undo is not None:
            return False
        head = self._drafts[0]
        if head.is_sure or not self._carry.needs_advice or head.start in self._known:
            return True
        if not self._may_be_answered(head.start):
            return True
        if self._now() < self._deadline_s(head):
            return False
        self._give_up_on_overdue()
        return True

    def _give_up_on_overdue(self) -> None:
        """Wait no more for questions that take twice the usual time; nothing is usual at first.

        When nothing at all was answered for so long, the cloud is away, and so are all questions.
        """
        oldest_s = min((q.sent_s for q in self._questions), default=self._now())
        silent_s = self._now() - max(self._answered_s, oldest_s)
        for question in self._questions:
            waited_s = max(silent_s, self._now() - question.sent_s)
            question.late = question.late or waited_s * 1000 >= 2 * self._pace.usual_answer_ms

    def _may_ask(self) -> bool:
        return self._advise is not None and self._failures < FAILURES_TO_STOP

    def _may_be_answered(self, place: int) -> bool:
        """Whether an answer for this place is worth waiting for."""
        if not self._may_ask():
            return False
        covering = [q for q in self._questions if q.start <= place <= q.end]
        if covering or place <= self._asked_to:
            return any(not q.late for q in covering)
        return not any(q.late for q in self._questions)

    def _deadline_s(self, head: _Drafted) -> float:
        budget_ms = self._limits.budget_ms if self._n_released else self._limits.first_budget_ms
        return max(head.ready_s, self._released_s) + budget_ms / 1000

    def release(self) -> Draw:
        """The next token; a correction throws the drafts behind it away."""
        head = self._drafts.popleft()
        is_asked = self._carry.needs_advice and not head.is_sure
        advice = self._known.get(head.start) if is_asked else None
        advice = self._carry.joined(advice, head.start)
        used = None if head.is_sure else advice
        network = QUIET
        if self._network is not None:
            age_ms = max(0.0, self._now() - self._answered_s) * 1000
            network = replace(self._network(), age_ms=age_ms)
        draw = self._drawing.draw(head.log_q_V, used, self._n_released, network)
        self._carry = carry_after(advice, draw.id, draw.data, self._alignment)
        self._text += draw.data
        self._ends.append(len(self._text))
        self._n_released += 1
        self._last_id, self._released_s = draw.id, self._now()
        self._pace.released(kept=draw.id == head.id)
        if draw.id != head.id:
            self._correct(draw.id)
        return draw

    def _correct(self, token: int) -> None:
        n_fed = len(self._drafts) + (self._edge is not None)
        self._undo = (n_fed, token)
        self._drafts.clear()
        self._known.clear()
        for question in self._questions:
            question.task.cancel()
            self._gone.append(question.task)
        self._questions.clear()
        self._asked_to = len(self._text) - 1
        is_needed = self._carry.needs_advice and self._is_sure is None and not self.is_over
        if is_needed and self._may_ask() and token not in self._eos_ids:
            self._send((), (), end=len(self._text))  # without waiting for the SLM's next draft

    # --- drafting and asking

    def advance(self) -> None:
        """Start what can be started now: an undo, the SLM's next step, a question."""
        if self._undo is not None and (self._edge is None or self._edge.done()):
            self._replace()
        if self._edge is None and self._undo is None and self._can_draft():
            last = self._drafts[-1].id if self._drafts else self._last_id
            self._step(last)
        self._ask()

    def _can_draft(self) -> bool:
        if self._n_released + len(self._drafts) >= self._max_tokens:
            return False
        if not self._drafts:
            return True
        ahead = self._pace.lookahead_tokens(self._limits.lookahead_tokens)
        return self._drafts[-1].id not in self._eos_ids and len(self._drafts) < ahead

    def _replace(self) -> None:
        """Forget the tokens that a correction made wrong, and feed the right one."""
        assert self._undo is not None
        (n_fed, token), self._undo = self._undo, None
        edge, self._edge = self._edge, None
        if edge is not None:
            edge.result()  # a failed step ends the stream
        if token in self._eos_ids or self.is_over:
            return
        self._drafting.rollback(n_fed)
        self._step(token)

    def _step(self, token: int) -> None:
        self._edge, self._edge_started_s = self._drafting.step(token), self._now()

    def _ask(self) -> None:
        """Send the places not asked about, when there are enough of them or nothing is out."""
        if self._undo is not None or not self._may_ask():
            return
        if len(self._questions) >= self._limits.questions or any(q.late for q in self._questions):
            return
        unasked = (d for d in self._drafts if d.start > self._asked_to)
        places = list(dropwhile(lambda d: d.is_sure, unasked))
        if not places or (self._questions and len(places) < self._pace.block_tokens()):
            return
        places = places[: self._pace.question_places]
        while places[-1].is_sure:
            places.pop()
        before = [d for d in self._drafts if d.start < places[0].start]
        self._send(before, places[:-1], end=places[-1].start)

    def _send(self, before: Sequence[_Drafted], draft: Sequence[_Drafted], *, end: int) -> None:
        """Ask behind the stream and `before`, at each place of `draft` and at `end` behind it."""
        assert self._advise is not None
        question = Question(
            answer=self._text + b"".join(d.data for d in before),
            draft=b"".join(d.data for d in draft),
            ends=(*self._ends, *(d.start + len(d.data) for d in (*before, *draft))),
        )
        task = asyncio.ensure_future(self._advise(question))
        start = len(question.answer)
        self._questions.append(_Question(task=task, start=start, end=end, sent_s=self._now()))
        self._asked_to = end

    # --- waiting

    async def progress(self) -> None:
        """Start what can be started, then wait until something has happened."""
        self._collect()
        self.advance()
        waiting: set[asyncio.Future[Any]] = {q.task for q in self._questions}
        if self._edge is not None:
            waiting.add(self._edge)
        timeout_s = None
        if self._drafts and self._undo is None:
            timeout_s = max(0.0, self._deadline_s(self._drafts[0]) - self._now())
        if waiting and not self.can_release():
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        self._collect()

    def _collect(self) -> None:
        for question in [q for q in self._questions if q.task.done()]:
            self._questions.remove(question)
            self._answer(question)
        if self._edge is not None and self._edge.done() and self._undo is None:
            log_q_V, self._edge = self._edge.result(), None
            place = self._n_released + len(self._drafts)
            token = self._drawing.propose(log_q_V, place)
            start = len(self._text) + sum(len(d.data) for d in self._drafts)
            self._pace.stepped((self._now() - self._edge_started_s) * 1000)
            data = self._drawing.token_bytes(token)
            self._drafts.append(
                _Drafted(
                    log_q_V=log_q_V,
                    id=token,
                    data=data,
                    start=start,
                    ready_s=self._now(),
                    is_sure=self._is_sure is not None and self._is_sure(log_q_V),
                )
            )

    def _answer(self, question: _Question) -> None:
        try:
            found = question.task.result()
        except CloudFailed:
            self._failures += 1
        else:
            self._failures, self._answered_s = 0, self._now()
            if found:  # an empty answer may come from a guard and says nothing of the network
                self._pace.answered((self._now() - question.sent_s) * 1000)
            self._known.update((a.offset_bytes, a) for a in found)

    async def close(self) -> None:
        """Cancel the step and the questions that are out, and wait for the questions to be gone."""
        if self._edge is not None and not self._edge.cancel() and not self._edge.cancelled():
            self._edge.exception()  # read, or asyncio prints it
        tasks = [q.task for q in self._questions] + self._gone
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and not isinstance(task.exception(), CloudFailed):
                task.result()


def _is_free(request: Request) -> bool:
    """Nobody can expect the same answer again."""
    return request.sampling.seed is None and request.sampling.temperature > 0
