"""A KV context without llama.cpp: answers depend on every token before, and all is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floe.engine.jobs import Job, Seat
from floe.engine.kv_context import AdapterKey, KvSequence, Piece
from floe.engine.scheduler import Scheduler

V = 8
WAIT_S = 20.0


def logits_of(key: AdapterKey | None, tokens: Sequence[int]) -> NDArray[np.float32]:
    """What the fake gives after these tokens under these adapters; shape (V,)."""
    state = sum(ord(c) for name, _ in key or () for c in name)
    for token in tokens:
        state = (state * 31 + token + 7) % 1_000_003
    return np.sin(state * np.arange(1, V + 1, dtype=np.float64)).astype(np.float32)


def log_probs_of(key: AdapterKey | None, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The oracle: `logits_of`, normalised."""
    logits = logits_of(key, tokens).astype(np.float64)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


@dataclass(kw_only=True)
class Recorder:
    """What all contexts did, and a gate that lets decodes through one by one when `hold` is set."""

    decodes: list[tuple[AdapterKey | None, list[tuple[int, int]]]] = field(default_factory=list)
    contexts: list[FakeKv] = field(default_factory=list)
    hold: bool = False
    at_gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    faults: list[BaseException] = field(default_factory=list)

    def new_context(self, *, n_ctx: int, n_seq: int) -> FakeKv:
        context = FakeKv(self, n_ctx=n_ctx, n_seq=n_seq)
        self.contexts.append(context)
        return context

    def wait_at_gate(self) -> None:
        """Until a decode has begun and stands at the gate."""
        assert self.at_gate.acquire(timeout=WAIT_S)

    def open_gate(self) -> None:
        """Let this decode and all that follow through."""
        self.hold = False
        self.gate.release()


class FakeKv:
    """Same calls as KvContext. Fails when rows hold more than it has cells for."""

    def __init__(self, recorder: Recorder, *, n_ctx: int, n_seq: int) -> None:
        self.recorder, self.n_ctx, self.n_batch = recorder, n_ctx, 512
        self.sequences = [KvSequence(id=i) for i in range(n_seq)]
        self.key: AdapterKey | None = None
        self.closed = False

    @property
    def idle(self) -> bool:
        return not any(s.open for s in self.sequences)

    def bind(self, key: AdapterKey, adapters: Sequence[tuple[int, float]]) -> None:
        assert self.idle, "rebound under an open session"
        for sequence in self.sequences:
            self.forget(sequence)
        self.key = key

    def truncate(self, sequence: KvSequence, n_tokens: int) -> None:
        del sequence.tokens[n_tokens:]

    def forget(self, sequence: KvSequence) -> None:
        sequence.tokens.clear()

    def copy_prefix(self, source: KvSequence, target: KvSequence, n_tokens: int) -> None:
        assert not target.open, "an open row was taken"
        target.tokens[:] = source.tokens[:n_tokens]

    def decode(self, pieces: Sequence[Piece]) -> list[NDArray[np.float32]]:
        self.recorder.decodes.append((self.key, [(p.sequence.id, len(p.tokens)) for p in pieces]))
        if self.recorder.hold:
            self.recorder.at_gate.release()
            assert self.recorder.gate.acquire(timeout=WAIT_S)
        if self.recorder.faults:
            raise self.recorder.faults.pop(0)
        out = []
        for piece in pieces:
            assert piece.sequence.open, "a decode for a row that nobody owns"
            before = list(piece.sequence.tokens)
            piece.sequence.tokens.extend(piece.tokens)
            ends = [[*before, *piece.tokens[: w + 1]] for w in piece.wanted]
            rows = [logits_of(self.key, tokens) for tokens in ends]
            out.append(np.array(rows, np.float32).reshape(len(rows), V))
        held = sum(len(s.tokens) for s in self.sequences)
        assert held <= self.n_ctx, f"{held} tokens in {self.n_ctx} cells"
        return out

    def close(self) -> None:
        self.closed = True


class Pool:
    """A scheduler over fakes, with short words for tests."""

    def __init__(
        self,
        *,
        context_tokens: int = 512,
        max_contexts: int = 2,
        rows: int = 3,
        max_waiting: int = 8,
        new_context: Callable[[Recorder], FakeKv] | None = None,
    ) -> None:
        self.recorder = Recorder()
        make = new_context or (lambda r: r.new_context(n_ctx=context_tokens, n_seq=rows))
        self.scheduler = Scheduler(
            lambda: make(self.recorder),  # type: ignore[arg-type, return-value]
            context_tokens=context_tokens,
            max_contexts=max_contexts,
            max_waiting=max_waiting,
        )

    def ask(self, name: str = "", *, prompt: Sequence[int] = (), need: int = 64) -> Future[Seat]:
        key: AdapterKey = ((name, 1.0),) if name else ()
        adapters = [(hash(name), 1.0)] if name else []
        return self.scheduler.open(key, adapters, prompt=prompt, need_tokens=need)

    def seat(self, name: str = "", *, prompt: Sequence[int] = (), need: int = 64) -> Seat:
        return self.ask(name, prompt=prompt, need=need).result(timeout=WAIT_S)

    def submit(
        self, seat: Seat, tokens: Sequence[int], *, keep: int | None = None, every: bool = False
    ) -> Future[NDArray[np.float32]]:
        future: Future[NDArray[np.float32]] = Future()
        kept = len(seat.row.tokens) if keep is None else keep
        self.scheduler.submit(
            seat, Job(keep_tokens=kept, tokens=list(tokens), every=every, future=future)
        )
        return future

    def feed(self, seat: Seat, tokens: Sequence[int], **how: object) -> NDArray[np.float32]:
        return self.submit(seat, tokens, **how).result(timeout=WAIT_S)  # type: ignore[arg-type]

    def settle(self) -> None:
        """Until the engine's thread has done everything asked for before, decodes apart."""
        self.scheduler.call(lambda: None).result(timeout=WAIT_S)
        self.scheduler.call(lambda: None).result(timeout=WAIT_S)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.hold = False
        self.recorder.gate.release(1000)
        self.scheduler.stop()
        assert all(c.closed for c in self.recorder.contexts)
