"""Contexts side by side: at once, a thread each, and one's failure is not the other's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floe.core.errors import FloeError
from floe.engine.jobs import Job, Outbox, Seat
from floe.engine.kv_context import KvSequence, Piece
from floe.engine.lanes import Lanes
from floe.engine.llamacpp import LlamaCppEngine
from floe.testing.tiny_model import make_tiny_model

WAIT_S = 20.0


class FakeContext:
    def __init__(self, meet: threading.Barrier, error: BaseException | None = None) -> None:
        self.meet, self.error, self.threads = meet, error, 0

    def use_threads(self, n_threads: int) -> None:
        self.threads = n_threads

    def decode(self, pieces: Sequence[Piece]) -> list[Any]:
        self.meet.wait(WAIT_S)  # passes only when all are here at once
        if self.error:
            raise self.error
        return [np.zeros((1, 4), np.float32)]


def _plan(*errors: BaseException | None) -> list[Any]:
    meet = threading.Barrier(len(errors))
    return [
        (FakeContext(meet, e), [Piece(sequence=_row(), tokens=[1], wanted=[0])]) for e in errors
    ]


def _row() -> KvSequence:
    return KvSequence(id=0)


def _seat(context: object, n_tokens: int, *, ended_s: float = float("-inf")) -> Seat:
    job = None
    if n_tokens:
        job = Job(keep_tokens=0, tokens=[1] * n_tokens, every=False, future=Future())
    return Seat(context=context, row=_row(), job=job, ended_s=ended_s)  # type: ignore[arg-type]


def test_contexts_decode_at_once_with_a_thread_each() -> None:
    lanes, plans = Lanes(2), _plan(None, None)
    outcomes = lanes.decode(plans)
    assert [c.threads for c, _ in plans] == [1, 1]
    for rows in outcomes:
        assert not isinstance(rows, FloeError)
        assert np.allclose(rows[0], np.log(0.25))
    alone = _plan(None)
    lanes.decode(alone)
    assert alone[0][0].threads == 2
    lanes.close()


def test_one_failure_is_not_the_others() -> None:
    lanes = Lanes(2)
    for errors in ((FloeError("broken"), None), (None, FloeError("broken"))):
        outcomes = lanes.decode(_plan(*errors))
        assert [str(o) if isinstance(o, FloeError) else "" for o in outcomes] == [
            "broken" if e else "" for e in errors
        ]
    lanes.close()


def test_what_nobody_expects_ends_the_caller_after_all_have_ended() -> None:
    lanes = Lanes(2)
    for errors in ((MemoryError(), None), (None, MemoryError())):
        with pytest.raises(MemoryError):
            lanes.decode(_plan(*errors))
    lanes.close()


def test_when_it_pays() -> None:
    assert [Lanes(2).pays(n) for n in (1, 2, 3)] == [False, True, True]
    assert [Lanes(4).pays(n) for n in (1, 2, 3)] == [False, False, True]


def test_only_single_tokens_share_a_turn() -> None:
    lanes, (a, b, c) = Lanes(2), (object(), object(), object())
    steps = [_seat(a, 1), _seat(b, 1), _seat(c, 1)]
    assert lanes.sharing(b, [a, b, c], steps) == [b, c]  # type: ignore[list-item, arg-type, comparison-overlap]
    prompts = [_seat(a, 1), _seat(b, 9), _seat(c, 1)]
    assert lanes.sharing(b, [a, b, c], prompts) == [b]  # type: ignore[list-item, arg-type, comparison-overlap]
    assert lanes.sharing(a, [a, b, c], prompts) == [a, c]  # type: ignore[list-item, arg-type, comparison-overlap]
    assert lanes.sharing(a, [a], [_seat(a, 1)]) == [a]  # type: ignore[list-item, arg-type, comparison-overlap]


def test_who_is_waited_for() -> None:
    a, b, now_s = object(), object(), time.monotonic()
    wants = _seat(a, 1)
    fresh, rested = _seat(b, 0, ended_s=now_s), _seat(b, 0, ended_s=now_s - 60)
    assert Lanes(2).worth_waiting([wants, fresh], 30.0)
    assert not Lanes(2).worth_waiting([wants, rested], 30.0)
    assert not Lanes(1).worth_waiting([], 30.0)
    assert not Lanes(4).worth_waiting([wants, fresh], 30.0), "in turn is as good"
    assert Lanes(4).worth_waiting([wants, _seat(a, 0, ended_s=now_s)], 30.0), "one batch"
    fresh.left = True
    assert not Lanes(2).worth_waiting([wants, fresh], 30.0)


def test_the_outbox_delivers_what_was_put_before_the_last_wait() -> None:
    outbox, gate = Outbox(), threading.Event()
    first: Future[int] = Future()
    first.set_running_or_notify_cancel()
    seen: list[int] = []
    first.add_done_callback(lambda f: (gate.wait(WAIT_S), seen.append(f.result())))
    outbox.put(first, 7)
    outbox.wait()  # does not wait for what was put since the wait before
    assert seen == []
    gate.set()
    outbox.wait()
    assert seen == [7]
    outbox.close()


def test_streams_side_by_side_get_what_each_gets_alone(tmp_path: Path) -> None:
    """Two threads, three contexts: greedy streams at once give the same as one after the other."""
    engine = LlamaCppEngine(
        make_tiny_model(tmp_path).gguf, digest="t", threads=2, context_tokens=256, kv_f32=True,
        max_contexts=3, sessions_per_context=1,
    )  # fmt: skip

    def stream(seed: int) -> list[int]:
        session = engine.session(max_tokens=64).result(WAIT_S)
        row = session.feed([40 + seed, 50, 60])
        out = []
        for _ in range(20):
            out.append(int(row.argmax()))
            row = session.feed(out[-1:])
        session.close()
        return out

    alone = [stream(i) for i in range(3)]
    at_once: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i: at_once.update({i: stream(i)})) for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [at_once[i] for i in range(3)] == alone
    engine.close()
