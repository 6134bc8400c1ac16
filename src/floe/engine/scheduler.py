"""One thread owns every context: it admits sessions, and gives each context its turn.

A turn is one llama_decode: the next token of every session of a context together with a chunk of
a waiting prompt. Contexts with work take turns, so two streams with different adapters both
advance; sessions that share their adapters are batched. Contexts that all want single tokens share
a turn, side by side.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadRequest, Busy, ContextTooLong, FloeError
from floe.core.timing import OnStep, StepTiming, unheard
from floe.engine.jobs import Job, Outbox, Seat, Waiting, fail, fail_job, left_tokens
from floe.engine.kv_context import AdapterKey, KvContext, KvSequence, Piece
from floe.engine.lanes import Lanes
from floe.engine.placement import Place, place_bound, place_idle, rows_to_forget

_log = logging.getLogger(__name__)

CHUNK_ALONE_TOKENS = 384  # a newcomer waits for at most this much of a lone prompt; 256 costs 4 %
CHUNK_SHARED_TOKENS = 32  # bounds how long another session's next token waits
GATHER_S = 0.002  # what a step waits for those that could share its turn
RECENT_S = 0.1  # a stream's next token is asked for this soon after the one before, or it rests
CHUNK_EVERY_TOKENS = 32  # bounds the logits buffer, V floats a token


class Scheduler:
    """Admission in order of arrival, turns in circles. Thread-safe.

    `on_step` hears of every turn, on the engine's thread; it may be set at any time.
    """

    def __init__(
        self,
        new_context: Callable[[], KvContext],
        *,
        context_tokens: int,
        max_contexts: int,
        max_waiting: int,
        threads: int = 1,
    ) -> None:
        self.on_step: OnStep = unheard
        self._new_context, self.context_tokens = new_context, context_tokens
        self._max_contexts, self._max_waiting = max_contexts, max_waiting
        self.contexts: list[KvContext] = []
        self._seats: list[Seat] = []
        self._waiting: deque[Waiting] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._clock, self._turn, self._changed, self._stopping = 0, 0, False, False
        self.failure: BaseException | None = None
        self._outbox, self._lanes = Outbox(), Lanes(threads)
        self._thread = threading.Thread(target=self._run, name="floe-engine", daemon=True)
        self._thread.start()

    # --- called from any thread ---

    def open(
        self,
        key: AdapterKey,
        adapters: Sequence[tuple[int, float]],
        *,
        prompt: Sequence[int],
        need_tokens: int,
    ) -> Future[Seat]:
        """A seat with `need_tokens` of room when its turn has come; FIFO (bug-log A67)."""
        future: Future[Seat] = Future()
        if need_tokens > self.context_tokens:
            future.set_exception(
                ContextTooLong(
                    f"prompt and answer need {need_tokens} tokens, the context holds "
                    f"{self.context_tokens}: shorten the prompt or lower max_tokens",
                    param="max_tokens",
                )
            )
            return future
        with self._wake:
            if self._refuse(future):
                return future
            self._drop_cancelled()
            if len(self._waiting) >= self._max_waiting:
                future.set_exception(Busy(f"{self._max_waiting} requests wait already; try again"))
                return future
            waiting = Waiting(
                key=key, adapters=adapters, prompt=prompt, need_tokens=need_tokens, future=future
            )
            self._waiting.append(waiting)
            self._notify()
        future.add_done_callback(self._wake_if_cancelled)
        return future

    def submit(self, seat: Seat, job: Job) -> None:
        """Start a job on a seat that has none."""
        with self._wake:
            if seat.left:
                job.future.set_exception(BadRequest("the session is closed"))
            elif not self._refuse(job.future):
                seat.job = job
                self._notify()

    def leave(self, seat: Seat) -> None:
        """Give a seat back; its job, if any, is dropped at the next turn."""

        with self._wake:
            seat.left = True
        self.call(lambda: self._vacate(seat))

    def vacate_left(self) -> None:
        """Free the seats that were given back already; engine thread only."""
        for seat in [s for s in self._seats if s.left]:
            self._vacate(seat)

    def _vacate(self, seat: Seat) -> None:
        if seat in self._seats:
            self._seats.remove(seat)
            seat.row.open, seat.row.reserved_tokens = False, 0
            fail_job(seat, FloeError("the session was closed"))

    def holds(self, pointer: int) -> bool:
        """A request that still waits will bind this adapter; engine thread only."""
        with self._wake:
            self._drop_cancelled()
            return any(p == pointer for w in self._waiting for p, _ in w.adapters)

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` on the engine's thread, between turns."""
        future: Future[Any] = Future()
        with self._wake:
            if not self._refuse(future):
                self._calls.append((work, future))
                self._notify()
        return future

    def stop(self) -> None:
        """Fail what waits, free every context, end the thread."""
        with self._wake:
            self._stopping = True
            self._notify()
        self._thread.join()

    @property
    def open_seats(self) -> int:
        """Sessions open now."""
        return len(self._seats)

    def _notify(self) -> None:
        self._changed = True
        self._wake.notify()

    def _wake_if_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():
            with self._wake:
                self._notify()

    def _drop_cancelled(self) -> None:
        """Requests whose callers have gone take no place in the queue; with the lock held."""
        for waiting in [w for w in self._waiting if w.future.cancelled()]:
            self._waiting.remove(waiting)

    def _refuse(self, future: Future[Any]) -> bool:
        if self._stopping or self.failure is not None:
            future.set_exception(FloeError("the engine has stopped; restart the server"))
            return True
        return False

    # --- the engine's thread ---

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._serve_calls()
                self._admit()
                if not self._decode_turn():
                    with self._wake:
                        self._wake.wait_for(lambda: self._changed)
                        self._changed = False
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._end()

    def _serve_calls(self) -> None:
        while self._calls:
            work, future = self._calls.popleft()
            try:
                result = work()
            except Exception as error:  # the caller's to handle, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)

    def _admit(self) -> None:
        while waiting := self._head():
            try:
                place = self._place(waiting)
                if place is None:
                    return
                if not waiting.future.set_running_or_notify_cancel():
                    continue  # the next look at the head drops it
                seat = self._seat(waiting, place)
            except FloeError as error:
                self._take(waiting)
                fail(waiting.future, error)
            else:
                self._take(waiting)
                waiting.future.set_result(seat)

    def _head(self) -> Waiting | None:
        with self._wake:
            self._drop_cancelled()
            return self._waiting[0] if self._waiting else None

    def _take(self, waiting: Waiting) -> None:
        with self._wake:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _place(self, waiting: Waiting) -> Place | None:
        need = waiting.need_tokens
        place = place_bound(self.contexts, waiting.key, waiting.prompt, need)
        if place is None and len(self.contexts) < self._max_contexts:
            self._add_context()
        return place or place_idle(self.contexts, need)

    def _add_context(self) -> None:
        """One context more; where memory ends, the pool stays as large as it is.

        Raises:
            FloeError: not even one can be made.
        """
        try:
            self.contexts.append(self._new_context())
        except FloeError as error:
            if not self.contexts:
                raise
            self._max_contexts = len(self.contexts)
            _log.warning("the engine stays at %d contexts: %s", self._max_contexts, error)

    def _seat(self, waiting: Waiting, place: Place) -> Seat:
        context, row = place.context, place.row
        if place.rebind:
            context.bind(waiting.key, waiting.adapters)
        elif place.source is not row:
            context.copy_prefix(place.source, row, place.n_prefix)
        context.truncate(row, place.n_prefix)
        row.open, row.reserved_tokens = True, waiting.need_tokens
        for cached in rows_to_forget(context, row):
            context.forget(cached)
        seat = Seat(context=context, row=row)
        self._touch(row)
        self._seats.append(seat)
        return seat

    def fork(self, seat: Seat) -> Seat:
        """A second seat at the same point; engine thread only.

        Raises:
            Busy: no free row or no room for the same reserve again.
        """
        context, need = seat.context, seat.row.reserved_tokens
        free = [s for s in context.sequences if not s.open]
        in_use = sum(s.reserved_tokens for s in context.sequences if s.open)
        if not free or in_use + need > context.n_ctx:
            raise Busy("no room to fork a session: raise model.context_tokens")
        row = min(free, key=lambda s: s.last_used)
        context.copy_prefix(seat.row, row, len(seat.row.tokens))
        row.open, row.reserved_tokens = True, need
        for cached in rows_to_forget(context, row):
            context.forget(cached)
        twin = Seat(context=context, row=row)
        self._seats.append(twin)
        return twin

    def _touch(self, row: KvSequence) -> None:
        self._clock += 1
        row.last_used = self._clock

    def _decode_turn(self) -> bool:
        """One decode of the next context that has work; False when none has."""
        self._outbox.wait()
        for seat in self._seats:
            if seat.job is not None and seat.job.future.cancelled():
                fail_job(seat, FloeError("the caller has gone"))
        if len(self._seats) > 1:
            self._gather()
        busy = [c for c in self.contexts if any(s.job for s in self._seats if s.context is c)]
        if not busy:
            return False
        self._turn += 1
        n = len(self.contexts)
        context = min(busy, key=lambda c: (self.contexts.index(c) - self._turn) % n)
        self._turn = self.contexts.index(context)
        plans = []
        for sharing in self._lanes.sharing(context, busy, self._seats):
            seats = [s for s in self._seats if s.context is sharing and s.job and self._begin(s)]
            if plan := self._plan(seats):
                plans.append((sharing, plan))
        self._decode(plans)
        return True

    def _gather(self) -> None:
        """Wait a moment for streams whose next token could share the turn with those wanted now."""
        with self._wake:
            jobs = [s for s in self._seats if s.job]
            if jobs and all(left_tokens(s) == 1 for s in jobs):
                late_s = max(s.ended_s for s in self._seats) + GATHER_S - time.monotonic()
                if late_s > 0:
                    self._wake.wait_for(
                        lambda: not self._lanes.worth_waiting(self._seats, GATHER_S), late_s
                    )

    def _begin(self, seat: Seat) -> bool:
        """Cut the row back before a job's first token; False when its caller has gone."""
        job = seat.job
        if job is None:
            return False
        if job.done_tokens == 0 and not job.future.running():
            if not job.future.set_running_or_notify_cancel():
                fail_job(seat, FloeError("the caller has gone"))
                return False
            if job.keep_tokens > len(seat.row.tokens):
                fail_job(seat, FloeError("the session has lost tokens; open another"))
                return False
            seat.context.truncate(seat.row, job.keep_tokens)
        return True

    def _plan(self, seats: list[Seat]) -> list[tuple[Seat, Piece]]:
        """Short jobs whole, then long ones in chunks, within one batch."""
        room = seats[0].context.n_batch if seats else 0
        recent_s = time.monotonic() - RECENT_S
        active = sum(1 for s in self._seats if s.job is not None or s.ended_s > recent_s)
        chunk = CHUNK_ALONE_TOKENS if active <= 1 else CHUNK_SHARED_TOKENS
        plan = []
        for seat in sorted(seats, key=left_tokens):
            job = seat.job
            if job is None:
                continue
            limit = min(chunk, CHUNK_EVERY_TOKENS) if job.every else chunk
            n = min(left_tokens(seat), limit, room)
            if n <= 0:
                break
            tokens = job.tokens[job.done_tokens : job.done_tokens + n]
            last = job.done_tokens + n == len(job.tokens)
            wanted = range(n) if job.every else ([n - 1] if last else [])
            plan.append((seat, Piece(sequence=seat.row, tokens=tokens, wanted=wanted)))
            room -= n
            chunk = max(chunk - n, 1)
        return plan

    def _decode(self, plans: list[tuple[KvContext, list[tuple[Seat, Piece]]]]) -> None:
        step = _Turn(plans) if plans and self.on_step is not unheard else None
        outcomes = self._lanes.decode([(c, [piece for _, piece in plan]) for c, plan in plans])
        if step is not None:
            self.on_step(step.timing())
        for (_, plan), outcome in zip(plans, outcomes, strict=True):
            if isinstance(outcome, FloeError):
                for seat, _ in plan:
                    fail_job(seat, outcome)
                continue
            for (seat, piece), rows in zip(plan, outcome, strict=True):
                self._touch(seat.row)
                self._advance(seat, len(piece.tokens), rows)

    def _advance(self, seat: Seat, n_tokens: int, rows: NDArray[np.float32]) -> None:
        job = seat.job
        if job is None:
            return
        job.done_tokens += n_tokens
        if len(rows):
            job.rows.append(rows)
            if np.isnan(job.rows[-1][:, 0]).any():  # one NaN or infinite logit makes a row NaN
                fail_job(seat, FloeError("the model gave no numbers; check model and adapters"))
                return
        if job.done_tokens == len(job.tokens):
            result = job.rows[0] if len(job.rows) == 1 else np.concatenate(job.rows)
            seat.job, seat.ended_s = None, time.monotonic()
            result = result if job.every else result[-1]
            if any(s.job for s in self._seats if s.context is not seat.context):
                self._outbox.put(job.future, result)
            else:
                job.future.set_result(result)

    def _end(self) -> None:
        self._outbox.close()
        self._lanes.close()
        error = FloeError("the engine has stopped; restart the server")
        with self._wake:
            self._stopping = True
            futures: list[Future[Any]] = [w.future for w in self._waiting]
            futures += [future for _, future in self._calls]
            self._waiting.clear()
            self._calls.clear()
            seats = list(self._seats)
            self._seats.clear()
        for seat in seats:
            fail_job(seat, error)
        for future in futures:
            fail(future, error)
        for context in self.contexts:
            context.close()
        self.contexts.clear()


class _Turn:
    """A turn that begins now: what is fed in it, before the jobs that say so are over."""

    def __init__(self, plans: Sequence[tuple[KvContext, Sequence[tuple[Seat, Piece]]]]) -> None:
        fed = [(seat.job, piece) for _, plan in plans for seat, piece in plan]
        is_prompt = any(job and len(job.tokens) > 1 and not job.every for job, _ in fed)
        self._phase: Literal["prefill", "decode"] = "prefill" if is_prompt else "decode"
        self._tokens = sum(len(piece.tokens) for _, piece in fed)
        self._sessions = len(fed)
        self._adapters = max(len(context.key or ()) for context, _ in plans)
        self._began_s = time.monotonic()

    def timing(self) -> StepTiming:
        """The turn, over now."""
        now_s = time.monotonic()
        return StepTiming(
            phase=self._phase,
            tokens=self._tokens,
            duration_ms=1000 * (now_s - self._began_s),
            sessions=self._sessions,
            adapters=self._adapters,
            ended_s=now_s,
        )
