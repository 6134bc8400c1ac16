"""What `floe bench decode` times: bare llama.cpp, and Floe's engine doing the same work.

Both load the same library and file and run the same greedy steps. Times are wall seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from floe.core.errors import FloeError
from floe.engine.llama_library import library
from floe.engine.llamacpp import LlamaCppEngine, LlamaSession
from floe.engine.vocabulary import Vocabulary

now = time.perf_counter
MAX_DECODE_TOKENS = 256


class Bare:
    """llama.cpp with its own default parameters, apart from n_ctx and threads, and argmax."""

    def __init__(self, model: Path, *, threads: int, context_tokens: int) -> None:
        door = library()
        self._c = door.c
        pointer = door.load_model(model)
        self.n_vocab = Vocabulary(door, pointer).n_vocab
        values = {"n_ctx": context_tokens, "n_threads": threads, "n_threads_batch": threads}
        self._ctx = door.new_context(pointer, n_seq_max=1, **values)
        self._memory = self._c.llama_get_memory(self._ctx)
        self._batch = self._c.llama_batch_init(context_tokens, 0, 1)
        self._prompt: tuple[int, ...] = ()

    def decode_s(self, prompt: Sequence[int], n_tokens: int) -> float:
        """Greedy steps in the loop that a user of the C API would write."""
        if self._prompt != tuple(prompt):
            self.prefill_s(prompt)
            self._prompt = tuple(prompt)
        self._c.llama_memory_seq_rm(self._memory, 0, len(prompt), -1)
        token, began = prompt[-1], now()
        for i in range(n_tokens):
            token = self._step([token], len(prompt) + i)
        return now() - began

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """The whole prompt in one batch."""
        self._c.llama_memory_clear(self._memory, True)
        self._prompt = ()
        began = now()
        self._step(prompt, 0)
        return now() - began

    def _step(self, tokens: Sequence[int], position: int) -> int:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 0
        batch.logits[len(tokens) - 1] = 1
        if self._c.llama_decode(self._ctx, batch):
            raise FloeError("llama.cpp failed to decode; the benchmark has no result")
        row = self._c.llama_get_logits_ith(self._ctx, len(tokens) - 1)
        return int(np.argmax(np.ctypeslib.as_array(row, (self.n_vocab,))))


class Floe:
    """Floe's engine with its defaults; every step delivers V float32 log-probabilities."""

    def __init__(
        self, model: Path, *, threads: int, context_tokens: int, max_contexts: int = 4
    ) -> None:
        self.engine = LlamaCppEngine(
            model,
            digest="benchmark",
            threads=threads,
            context_tokens=context_tokens,
            max_contexts=max_contexts,
        )
        self.n_vocab = self.engine.info.n_vocab
        self._session: LlamaSession | None = None
        self._prompt: tuple[int, ...] = ()
        self._handles: list[Any] = []

    def load(self, adapters: Sequence[str]) -> None:
        """Load these GGUF adapters."""
        self._handles = [self.engine.load_adapter(Path(a), key=a) for a in adapters]

    def decode_s(self, prompt: Sequence[int], n_tokens: int) -> float:
        """Greedy steps through `feed`."""
        session = self._ready(prompt)
        token, began = prompt[-1], now()
        for _ in range(n_tokens):
            token = int(session.feed([token]).argmax())
        return now() - began

    def async_decode_s(self, prompt: Sequence[int], n_tokens: int) -> float:
        """Greedy steps as a request does them: futures awaited in an event loop."""
        session = self._ready(prompt)

        async def steps() -> float:
            token, began = prompt[-1], now()
            for _ in range(n_tokens):
                token = int((await asyncio.wrap_future(session.submit([token]))).argmax())
            return now() - began

        return asyncio.run(steps())

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """A new session, no cached prefix (prompts differ from the first token on)."""
        began = now()
        session = self.engine.session(prompt=prompt, max_tokens=len(prompt)).result()
        session.feed(list(prompt))
        took_s = now() - began
        session.close()
        return took_s

    def switch_s(self, n_steady: int) -> dict[str, list[float]]:
        """First and steady steps of two sessions, each under its own adapter, in turn."""
        sessions = [self.engine.session([(h, 1.0)]).result() for h in self._handles]
        for session in sessions:
            session.feed([1, 2, 3, 4])
        first, steady = [], []
        for session in sessions * 2:
            times = [_timed(session, 5) for _ in range(1 + n_steady)]
            first.append(times[0])
            steady += times[1:]
        for session in sessions:
            session.close()
        return {"first_s": first[1:], "steady_s": steady}

    def rebind_s(self) -> dict[str, list[float]]:
        """One context: a session's opening and first step, adapter changed or the same again."""
        changed, same = [], []
        for handle in self._handles:
            changed.append(self._first_step_s(handle))
            same.append(self._first_step_s(handle))
        return {"changed_s": changed, "same_s": same}

    def _first_step_s(self, handle: Any) -> float:
        began = now()
        session = self.engine.session([(handle, 1.0)]).result()
        session.feed([5])
        took_s = now() - began
        session.close()
        return took_s

    def _ready(self, prompt: Sequence[int]) -> LlamaSession:
        """The session, holding exactly the prompt."""
        if self._session is None or self._prompt != tuple(prompt):
            if self._session is not None:
                self._session.close()
            room = len(prompt) + MAX_DECODE_TOKENS  # leaves the context room for prefills
            session = self.engine.session(prompt=prompt, max_tokens=room).result()
            assert isinstance(session, LlamaSession)
            session.feed(list(prompt))
            self._session, self._prompt = session, tuple(prompt)
        self._session.rollback(len(self._session.tokens) - len(prompt))
        return self._session


def _timed(session: Any, token: int) -> float:
    began = now()
    session.feed([token])
    return now() - began
