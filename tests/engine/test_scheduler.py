"""The scheduler over fake contexts: turns, order, refusals, and no future left without an end."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError, Future
from itertools import groupby

import numpy as np
import pytest
from fake_kv import WAIT_S, Pool, Recorder, log_probs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadModel, BadRequest, Busy, ContextTooLong, FloeError
from floe.engine.jobs import Job
from floe.engine.scheduler import CHUNK_EVERY_TOKENS, CHUNK_SHARED_TOKENS

A, B = (("a", 1.0),), (("b", 1.0),)
STOPPED = "the engine has stopped; restart the server"


# --- turns ---


def test_a_long_prompt_lets_the_other_context_have_every_second_turn() -> None:
    """While B's prompt is prefilled, A's next token is never more than one chunk away."""
    with Pool(max_contexts=2) as pool:
        a, b = pool.seat("a"), pool.seat("b", need=512)
        pool.recorder.hold = True
        steps: list[int] = []
        done = threading.Event()

        def step(_: Future[object] | None = None) -> None:
            if len(steps) == 12:
                done.set()
                return
            steps.append(len(a.row.tokens))
            pool.submit(a, [1]).add_done_callback(step)

        step()
        pool.recorder.wait_at_gate()  # A's first decode has begun, B comes behind it
        long = pool.submit(b, list(range(400)))
        pool.recorder.open_gate()
        assert done.wait(WAIT_S)
        assert np.allclose(long.result(WAIT_S), log_probs_of(B, range(400)), atol=1e-5)
        turns = [(key, sum(n for _, n in pieces)) for key, pieces in pool.recorder.decodes]
        shared = turns[: max(i for i, t in enumerate(turns) if t[0] == A)]
        runs = [(key, [n for _, n in run]) for key, run in groupby(shared, key=lambda t: t[0])]
        assert all(len(chunks) == 1 for _, chunks in runs)
        assert all(n <= CHUNK_SHARED_TOKENS for key, chunks in runs for n in chunks if key == B)


def test_three_contexts_take_turns_in_a_circle() -> None:
    with Pool(max_contexts=3) as pool:
        seats = [pool.seat(n, need=512) for n in "abc"]
        pool.recorder.hold = True
        futures = [pool.submit(s, range(300)) for s in seats]
        pool.recorder.wait_at_gate()
        pool.recorder.open_gate()
        for name, future in zip("abc", futures, strict=True):
            wanted = log_probs_of(((name, 1.0),), range(300))
            assert np.allclose(future.result(WAIT_S), wanted, atol=1e-5)
        names = [key[0][0] for key, _ in pool.recorder.decodes if key]
        together = names[: min(len(names) - names[::-1].index(n) for n in "abc")][1:]
        assert all(len(set(together[i : i + 3])) == 3 for i in range(len(together) - 2))


def test_sessions_with_the_same_adapters_share_a_decode() -> None:
    with Pool() as pool:
        seats = [pool.seat("a") for _ in range(3)]
        pool.recorder.hold = True
        first = pool.submit(seats[0], [5])
        pool.recorder.wait_at_gate()
        rest = [pool.submit(s, [6, 7]) for s in seats[1:]]
        pool.recorder.open_gate()
        for future in (first, *rest):
            future.result(WAIT_S)
        assert [len(pieces) for _, pieces in pool.recorder.decodes] == [1, 2]
        assert np.allclose(rest[1].result(), log_probs_of(A, [6, 7]), atol=1e-5)


def test_a_step_rides_along_with_a_prompt_of_its_own_context() -> None:
    """The next token of one session is in the same decode as a chunk of the other's prompt."""
    with Pool() as pool:
        stepping, prompting = pool.seat("a"), pool.seat("a", need=400)
        pool.recorder.hold = True
        first = pool.submit(stepping, [1])
        pool.recorder.wait_at_gate()
        long = pool.submit(prompting, range(380))
        second: list[Future[object]] = []
        first.add_done_callback(lambda _: second.append(pool.submit(stepping, [2])))
        pool.recorder.open_gate()
        long.result(WAIT_S)
        assert np.allclose(second[0].result(WAIT_S), log_probs_of(A, [1, 2]), atol=1e-5)
        sizes = [sorted(n for _, n in pieces) for _, pieces in pool.recorder.decodes]
        assert sizes[1][0] == 1
        assert len(sizes[1]) == 2


def test_logits_of_every_token_come_in_bounded_chunks() -> None:
    with Pool() as pool:
        seat = pool.seat(need=200)
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, V_IDS, 150)]
        rows_TV = pool.feed(seat, tokens, every=True)
        wanted = [log_probs_of((), tokens[: i + 1]) for i in range(150)]
        assert np.allclose(rows_TV, wanted, atol=1e-5)
        sizes = [n for _, pieces in pool.recorder.decodes for _, n in pieces]
        assert max(sizes) <= CHUNK_EVERY_TOKENS


V_IDS = 50


# --- admission ---


def test_a67_later_requests_do_not_overtake() -> None:
    """One context: A runs, B waits, then A again: B first, though A's adapter is in place."""
    with Pool(max_contexts=1, rows=2) as pool:
        running = pool.seat("a")
        order: list[str] = []
        b, again = pool.ask("b"), pool.ask("a")
        b.add_done_callback(lambda _: order.append("b"))
        again.add_done_callback(lambda _: order.append("a"))
        pool.settle()
        assert not b.done()
        assert not again.done(), "a later request overtook an earlier one"
        pool.scheduler.leave(running)
        seat = b.result(WAIT_S)
        pool.scheduler.leave(seat)
        again.result(WAIT_S)
        assert order == ["b", "a"]


def test_a_full_queue_is_busy_and_too_long_is_refused_at_once() -> None:
    with Pool(max_contexts=1, rows=1, max_waiting=2) as pool:
        pool.seat("a")
        waiting = [pool.ask("a"), pool.ask("b")]
        with pytest.raises(Busy, match="2 requests wait already; try again"):
            pool.ask("c").result(WAIT_S)
        wanted = "prompt and answer need 513 tokens, the context holds 512: shorten the prompt or"
        with pytest.raises(ContextTooLong, match=wanted) as caught:
            pool.ask("c", need=513).result(WAIT_S)
        assert caught.value.param == "max_tokens"
        assert not any(w.done() for w in waiting)


def test_cancelled_requests_hold_no_place_in_the_queue() -> None:
    with Pool(max_contexts=1, rows=1, max_waiting=2) as pool:
        running = pool.seat("a")
        gone = [pool.ask("b"), pool.ask("c")]
        assert all(w.cancel() for w in gone)
        kept = pool.ask("a")
        assert not kept.done() or kept.exception() is None
        pool.scheduler.leave(running)
        pool.scheduler.leave(kept.result(WAIT_S))
        pool.settle()
        assert pool.scheduler.open_seats == 0


def test_what_waits_behind_a_cancelled_request_is_admitted_at_once() -> None:
    """The head needs another adapter and waits; the next would fit as soon as the head goes."""
    with Pool(max_contexts=1, rows=2) as pool:
        pool.seat("a")
        head, behind = pool.ask("b"), pool.ask("a")
        pool.settle()
        assert not behind.done()
        assert head.cancel()
        behind.result(WAIT_S)


def test_a26_more_routes_than_contexts_are_all_served() -> None:
    with Pool(max_contexts=2, rows=2) as pool:
        for name in "abcdeabcde":
            seat = pool.seat(name)
            wanted = log_probs_of(((name, 1.0),), [1, 2])
            assert np.allclose(pool.feed(seat, [1, 2]), wanted, atol=1e-5)
            pool.scheduler.leave(seat)
        assert len(pool.recorder.contexts) == 2


def test_a_cached_prefix_is_given_and_another_adapters_is_not() -> None:
    """bug-log A04, A70: rows are found by (adapters, tokens), never by tokens alone."""
    with Pool(max_contexts=3) as pool:
        seat = pool.seat("a", prompt=[1, 2, 3])
        pool.feed(seat, [1, 2, 3])
        pool.scheduler.leave(seat)
        same = pool.seat("a", prompt=[1, 2, 9])
        assert same.row.tokens == [1, 2]
        for name in ("", "b"):
            assert pool.seat(name, prompt=[1, 2, 3]).row.tokens == []
        half = pool.scheduler.open((("a", 0.5),), [(1, 0.5)], prompt=[1, 2, 3], need_tokens=8)
        pool.settle()
        pool.scheduler.leave(same)
        assert half.result(WAIT_S).row.tokens == []


# --- ends that come early ---


def test_a_job_cancelled_before_its_turn_is_undone() -> None:
    with Pool() as pool:
        seat, other = pool.seat("a"), pool.seat("b")
        undone = threading.Event()
        pool.recorder.hold = True
        pool.submit(other, [1])
        pool.recorder.wait_at_gate()
        future: Future[np.ndarray] = Future()
        job = Job(keep_tokens=0, tokens=[1], every=False, future=future, undo=undone.set)
        pool.scheduler.submit(seat, job)
        assert future.cancel()
        pool.recorder.open_gate()
        assert undone.wait(WAIT_S)
        pool.settle()
        assert seat.job is None
        assert all(key != A for key, _ in pool.recorder.decodes)


def test_leaving_while_prefilling_stops_the_work() -> None:
    with Pool() as pool:
        seat = pool.seat("a", need=512)
        pool.recorder.hold = True
        future = pool.submit(seat, range(500))
        pool.recorder.wait_at_gate()
        pool.scheduler.leave(seat)
        pool.recorder.open_gate()
        with pytest.raises(FloeError, match="the session was closed"):
            future.result(WAIT_S)
        pool.settle()
        assert len(pool.recorder.decodes) == 1
        assert pool.scheduler.open_seats == 0
        assert pool.recorder.contexts[0].idle


def test_leaving_before_the_first_turn_fails_the_job_with_a_reason() -> None:
    """Never a bare CancelledError, which would look like the caller's own cancellation."""
    with Pool() as pool:
        seat, other = pool.seat("a"), pool.seat("b")
        pool.recorder.hold = True
        pool.submit(other, [1])
        pool.recorder.wait_at_gate()
        future = pool.submit(seat, [1])
        pool.scheduler.leave(seat)
        pool.recorder.open_gate()
        with pytest.raises(FloeError, match="the session was closed"):
            future.result(WAIT_S)


def test_a_submit_after_leaving_fails_at_once() -> None:
    """However the two race: the seat is left under the lock, so no job can be stranded on it."""
    with Pool() as pool:
        seat = pool.seat()
        pool.scheduler.leave(seat)
        with pytest.raises(BadRequest, match="the session is closed"):
            pool.feed(seat, [1])
        pool.scheduler.leave(seat)
        pool.settle()


def test_a_failed_decode_fails_its_own_jobs_only() -> None:
    with Pool() as pool:
        a, b = pool.seat("a"), pool.seat("b")
        pool.feed(a, [1, 2])
        pool.feed(b, [1, 2])
        pool.recorder.hold = True
        undone: list[bool] = []
        future: Future[np.ndarray] = Future()
        job = Job(
            keep_tokens=2, tokens=[3], every=False, future=future, undo=lambda: undone.append(True)
        )
        pool.scheduler.submit(a, job)
        pool.recorder.wait_at_gate()
        spared = pool.submit(b, [3])
        pool.recorder.faults.append(FloeError("llama.cpp failed to decode (code 1)"))
        pool.recorder.open_gate()
        with pytest.raises(FloeError, match=r"\(code 1\)"):
            future.result(WAIT_S)
        assert undone == [True]
        assert np.allclose(spared.result(WAIT_S), log_probs_of(B, [1, 2, 3]), atol=1e-5)
        assert np.allclose(pool.feed(a, [3]), log_probs_of(A, [1, 2, 3]), atol=1e-5)


def test_a_job_that_builds_on_lost_tokens_is_refused() -> None:
    """A gap would answer from other tokens than the session was fed, in silence."""
    with Pool() as pool:
        seat = pool.seat()
        pool.feed(seat, [1, 2])
        with pytest.raises(FloeError, match="the session has lost tokens; open another"):
            pool.feed(seat, [4], keep=3)
        assert np.allclose(pool.feed(seat, [4]), log_probs_of((), [1, 2, 4]), atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_fail_the_job(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pool() as pool:
        seat = pool.seat()
        bad = np.full((1, 8), 0.5, np.float32)
        bad[0, 3] = value
        context = pool.recorder.contexts[0]
        monkeypatch.setattr(context, "decode", lambda _: [bad.copy()])
        with pytest.raises(FloeError, match="the model gave no numbers; check model and adapters"):
            pool.feed(seat, [1])


def test_memory_that_ends_leaves_a_smaller_pool(caplog: pytest.LogCaptureFixture) -> None:
    """The second context cannot be made: one warning, and the routes share the first."""

    def make(recorder: Recorder) -> object:
        if recorder.contexts:
            raise BadModel("llama.cpp cannot create a context: out of memory")
        return recorder.new_context(n_ctx=512, n_seq=2)

    with (
        caplog.at_level(logging.WARNING, "floe.engine.scheduler"),
        Pool(max_contexts=3, new_context=make) as pool,  # type: ignore[arg-type]
    ):
        first = pool.seat("a")
        waiting = pool.ask("b")
        pool.settle()
        assert not waiting.done()
        pool.scheduler.leave(first)
        assert np.allclose(pool.feed(waiting.result(WAIT_S), [1]), log_probs_of(B, [1]), atol=1e-5)
    assert [r.message for r in caplog.records] == [
        "the engine stays at 1 contexts: llama.cpp cannot create a context: out of memory"
    ]


def test_without_memory_for_one_context_each_request_fails_and_the_engine_lives() -> None:
    def make(_: Recorder) -> object:
        raise BadModel("llama.cpp cannot create a context: out of memory")

    with Pool(new_context=make) as pool:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(BadModel, match="out of memory"):
                pool.seat()
        assert pool.scheduler.failure is None


# --- the end of the engine ---


def _explode(pool: Pool, how: str, monkeypatch: pytest.MonkeyPatch) -> list[Future[object]]:
    """Make the engine's thread meet a bug; every future that was under way."""
    a, b = pool.seat("a"), pool.seat("b")
    pool.recorder.hold = True
    futures: list[Future[object]] = [pool.submit(a, [1])]
    pool.recorder.wait_at_gate()
    futures += [pool.submit(b, [1]), pool.ask("c"), pool.ask("d")]

    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    if how == "decode":
        pool.recorder.faults.append(RuntimeError("bug"))
    elif how == "bind":
        pool.scheduler.leave(a)
        monkeypatch.setattr(a.context, "bind", bug)
    else:
        monkeypatch.setattr(b.context, "truncate", bug)
    futures.append(pool.scheduler.call(lambda: None) if how == "decode" else futures[0])
    pool.recorder.open_gate()
    return futures


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["decode", "bind", "truncate"])
def test_a_bug_ends_the_engine_and_nobody_waits_for_ever(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bug-log A38: thread death makes `failure` true and every request, old or new, an error."""
    with Pool(max_contexts=2) as pool:
        futures = _explode(pool, how, monkeypatch)
        pool.scheduler._thread.join(WAIT_S)
        assert isinstance(pool.scheduler.failure, RuntimeError)
        assert all(future.done() for future in futures)
        errors = [f.exception() for f in futures]
        assert STOPPED in [str(e) for e in errors]
        assert all(e is None or isinstance(e, FloeError) for e in errors)
        assert all(f.done() for f in (pool.ask("a"), pool.ask("z")))
        with pytest.raises(FloeError, match=STOPPED):
            pool.ask("a").result(WAIT_S)
        with pytest.raises(FloeError, match=STOPPED):
            pool.scheduler.call(lambda: None).result(WAIT_S)
        assert pool.scheduler.open_seats == 0


def test_a_call_that_raises_harms_its_caller_only() -> None:
    with Pool() as pool:

        def wrong() -> None:
            raise KeyError("wrong")

        with pytest.raises(KeyError):
            pool.scheduler.call(wrong).result(WAIT_S)
        pool.seat()


def test_stopping_fails_all_that_waits_and_can_be_repeated() -> None:
    with Pool(max_contexts=1, rows=1) as pool:
        seat = pool.seat("a", need=512)
        waiting = pool.ask("b")
        cancelled = pool.ask("c")
        pool.recorder.hold = True
        running = pool.submit(seat, range(500))
        pool.recorder.wait_at_gate()
        cancelled.cancel()
        stopper = threading.Thread(target=pool.scheduler.stop)
        stopper.start()
        pool.recorder.open_gate()
        stopper.join(WAIT_S)
        assert not stopper.is_alive()
        pool.scheduler.stop()
        for future in (waiting, running):
            with pytest.raises(FloeError, match=STOPPED):
                future.result(0)
        with pytest.raises(CancelledError):
            cancelled.result(0)
        with pytest.raises(FloeError, match=STOPPED):
            pool.feed(seat, [1])
        pool.scheduler.leave(seat)
        assert pool.scheduler.failure is None
        assert pool.recorder.contexts[0].closed


# --- forks ---


def test_a_fork_needs_a_row_and_the_same_reserve_again() -> None:
    with Pool(max_contexts=1, rows=2) as pool:
        seat = pool.seat(need=300)
        pool.feed(seat, [1, 2])
        with pytest.raises(Busy, match=r"no room to fork a session: raise model\.context_tokens"):
            pool.scheduler.call(lambda: pool.scheduler.fork(seat)).result(WAIT_S)
        pool.scheduler.leave(seat)
        seat = pool.seat(need=200)
        pool.feed(seat, [1, 2])
        twin = pool.scheduler.call(lambda: pool.scheduler.fork(seat)).result(WAIT_S)
        assert twin.row.tokens == [1, 2]
        with pytest.raises(Busy, match="no room to fork"):
            pool.scheduler.call(lambda: pool.scheduler.fork(seat)).result(WAIT_S)


# --- random lives ---

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "feed", "rollback", "fork", "leave", "cancel"]),
        st.integers(0, 7),
        st.lists(st.integers(0, 3), min_size=1, max_size=40),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_any_life_gives_what_a_fresh_run_gives(
    actions: list[tuple[str, int, list[int], bool]],
) -> None:
    """The twin keeps token lists and nothing else; the fake fails on any broken promise."""
    with Pool(context_tokens=128, max_contexts=2, rows=3) as pool:
        lives: list[tuple[object, str, list[int], int]] = []
        for verb, number, tokens, flag in actions:
            if verb == "open":
                name, need = ("", "a", "b")[number % 3], len(tokens) + number * 8
                asked = pool.ask(name, prompt=tokens, need=need)
                pool.settle()
                if not asked.done():
                    asked.cancel()
                    continue
                seat = asked.result()
                cached = seat.row.tokens[: len(tokens) - 1]
                assert cached == tokens[: len(cached)]
                answer = pool.feed(seat, tokens[len(cached) :], keep=len(cached))
                key = ((name, 1.0),) if name else ()
                assert np.allclose(answer, log_probs_of(key, tokens), atol=1e-5)
                lives.append((seat, name, list(tokens), need))
                continue
            if not lives:
                continue
            seat, name, fed, need = lives[number % len(lives)]
            key = ((name, 1.0),) if name else ()
            if verb == "leave":
                lives.remove((seat, name, fed, need))
                pool.scheduler.leave(seat)
            elif verb == "rollback":
                del fed[len(fed) // 2 + 1 :]
            elif verb == "fork":
                free = [s for s in seat.context.sequences if not s.open]
                twin = pool.scheduler.call(lambda s=seat: pool.scheduler.fork(s))
                if twin.exception(WAIT_S) is None:
                    lives.append((twin.result(), name, list(fed), need))
                else:
                    assert isinstance(twin.exception(), Busy)
                    held = sum(s.reserved_tokens for s in seat.context.sequences if s.open)
                    assert not free or held + need > 128
            elif verb == "cancel":
                future = pool.submit(seat, tokens[:1], keep=len(fed))
                if not future.cancel():
                    future.result(WAIT_S)
                pool.settle()
            elif len(fed) + len(tokens) <= need:
                answer = pool.feed(seat, tokens, keep=len(fed), every=flag)
                ends = range(len(fed) + 1, len(fed) + len(tokens) + 1)
                fed += tokens
                wanted = [log_probs_of(key, fed[:n]) for n in ends]
                assert np.allclose(answer, wanted if flag else wanted[-1], atol=1e-5)
        for seat, *_ in lives:
            pool.scheduler.leave(seat)
        pool.settle()
        assert pool.scheduler.open_seats == 0


def test_a_cancelled_request_holds_no_adapter() -> None:
    """Also before the engine has looked at its queue again."""
    with Pool(max_contexts=1, rows=1) as pool:
        a = pool.seat("a")
        pool.recorder.hold = True
        pool.submit(a, [1])
        pool.recorder.wait_at_gate()
        waiting = pool.ask("b")
        held = [pool.scheduler.call(lambda: pool.scheduler.holds(hash("b"))) for _ in range(2)]
        assert waiting.cancel()
        pool.recorder.open_gate()
        assert [each.result(WAIT_S) for each in held] == [False, False]


def test_a_seat_given_back_is_free_for_who_asks() -> None:
    """As when a request is cancelled while the engine opens its seat."""
    with Pool(max_contexts=1, rows=1) as pool:
        seat = pool.seat("a")

        def leave_and_look() -> tuple[int, bool]:
            pool.scheduler.leave(seat)  # what is queued for it comes after this call
            pool.scheduler.vacate_left()
            return pool.scheduler.open_seats, seat.row.open

        assert pool.scheduler.call(leave_and_look).result(WAIT_S) == (0, False)
