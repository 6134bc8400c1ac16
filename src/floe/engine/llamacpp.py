"""The serving engine: llama.cpp in process, many sessions, adapters per session. V = real ids."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path

from floe.core.errors import BadAdapter, BadRequest, ContextTooLong, FloeError
from floe.core.files import sha256_file
from floe.core.model import ModelInfo
from floe.core.timing import OnStep
from floe.engine.base import AdapterHandle, FloatArray, Session
from floe.engine.gguf_checks import (
    check_adapter,
    check_settings,
    checked_model,
    linear_shapes,
    per_layer,
)
from floe.engine.jobs import Job, Seat
from floe.engine.kv_context import KvContext, KvSettings
from floe.engine.llama_library import Library, last_log, library
from floe.engine.placement import common_prefix
from floe.engine.scheduler import Scheduler
from floe.engine.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class LlamaAdapter:
    """A LoRA in llama.cpp's memory."""

    key: str
    pointer: int


class LlamaCppEngine:
    """A GGUF model with a pool of contexts. Implements engine.base.Engine; thread-safe.

    `kv_f32` is for exact checks: an F32 cache without flash attention. Else `kv_type` (F16, F32,
    Q8_0), `flash_attention` and `batch_tokens` say how contexts compute.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        digest: str | None = None,
        names: Iterable[str] = (),
        threads: int = 0,
        context_tokens: int = 2048,
        max_contexts: int = 4,
        sessions_per_context: int = 4,
        max_waiting: int = 64,
        kv_f32: bool = False,
        kv_type: str = "F16",
        flash_attention: bool = True,
        batch_tokens: int = 512,
    ) -> None:
        header = checked_model(path)
        settings = KvSettings(
            kv_type="F32" if kv_f32 else kv_type,
            flash_attention=flash_attention and not kv_f32,
            batch_tokens=batch_tokens,
        )
        check_settings(settings, header)
        self._library = library()
        self._model = self._library.load_model(path)
        self._vocabulary = Vocabulary(self._library, self._model)
        self._adapters: dict[int, LlamaAdapter] = {}
        self._lock = threading.Lock()  # guards _adapters; held for moments only
        self._loading = threading.Lock()  # one adapter read or freed at a time
        self._n_vocab = self._vocabulary.n_vocab
        self._linears = linear_shapes(header)
        self._header, self._path, self._digest = header, path, digest
        self._name = name or path.stem
        self._names = frozenset(n.lower() for n in names)
        self.threads = threads or os.cpu_count() or 1
        self._architecture = str(header.metadata["general.architecture"])
        trained_tokens = int(header.metadata.get(f"{self._architecture}.context_length", 0))
        context_tokens = min(context_tokens, trained_tokens or context_tokens)

        def new_context() -> KvContext:
            return KvContext(
                self._library,
                self._model,
                n_ctx=context_tokens,
                n_seq=sessions_per_context,
                threads=self.threads,
                n_vocab=self._n_vocab,
                settings=settings,
            )

        self._scheduler = Scheduler(
            new_context,
            context_tokens=context_tokens,
            max_contexts=max_contexts,
            max_waiting=max_waiting,
            threads=self.threads,
        )

    @cached_property
    def info(self) -> ModelInfo:
        """Identity and shape, from the file's header."""
        meta = self._header.metadata
        architecture = self._architecture
        layers = int(meta[f"{architecture}.block_count"])
        heads = per_layer(self._header, "attention.head_count", layers)
        template = meta.get("tokenizer.chat_template")
        names = {str(meta[k]).lower() for k in ("general.name", "general.basename") if k in meta}
        return ModelInfo(
            name=self._name,
            digest=self._digest or sha256_file(self._path),
            architecture=architecture,
            n_layers=layers,
            width=int(meta[f"{architecture}.embedding_length"]),
            n_heads=heads[0],
            n_kv_heads=per_layer(self._header, "attention.head_count_kv", layers, default=heads)[0],
            n_vocab=self._n_vocab,
            context_tokens=self._scheduler.context_tokens,
            eos_ids=self._vocabulary.eos_ids,
            tokenizer_digest=self._vocabulary.digest,
            chat_template=template if isinstance(template, str) else None,
            names=self._names | names,
            linears=self._linears,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer."""
        return self._vocabulary

    @property
    def path(self) -> Path:
        """The model's file."""
        return self._path

    @property
    def library(self) -> Library:
        """The llama.cpp library it runs on."""
        return self._library

    @property
    def failure(self) -> str | None:
        """Why the engine's thread has ended, by class name; None while it runs."""
        error = self._scheduler.failure
        return type(error).__name__ if error else None

    def hear_steps(self, on_step: OnStep) -> None:
        """Call `on_step` after every turn, on the engine's thread: it must return at once."""
        self._scheduler.on_step = on_step

    @property
    def open_sessions(self) -> int:
        """Sessions open now."""
        return self._scheduler.open_seats

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, control tokens written in it are recognised."""
        return self._vocabulary.tokenize(text, special=special)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        return self._vocabulary.token_bytes(token)

    def load_adapter(self, path: Path, *, key: str) -> LlamaAdapter:
        """Load a LoRA GGUF after checking that every tensor of it fits the model.

        Runs on the caller's thread; streams go on meanwhile (bug-log A25).

        Raises:
            BadAdapter: anything in it does not fit; nothing was loaded.
        """
        check_adapter(path, architecture=self._architecture, linears=self._linears)
        with self._loading:
            if not self._model:
                raise FloeError("the engine is closed; it loads no adapters")
            pointer = self._library.c.llama_adapter_lora_init(self._model, os.fsencode(path))
            if not pointer:
                raise BadAdapter(f"llama.cpp refused the adapter {path}: {last_log()}")
            adapter = LlamaAdapter(key=key, pointer=int(pointer))
            with self._lock:
                self._adapters[adapter.pointer] = adapter
        return adapter

    def unload_adapter(self, handle: AdapterHandle) -> None:
        """Free an adapter that no open session uses.

        Raises:
            BadRequest: it is in use, or was freed before.
        """

        def let_go() -> LlamaAdapter:
            with self._lock:  # no session can be asked for between these checks
                adapter = self._own(handle)
                self._scheduler.vacate_left()  # a cut stream's seat may be on its way back still
                bound = [
                    context
                    for context in self._scheduler.contexts
                    if any(key == adapter.key for key, _ in context.key or ())
                ]
                if self._scheduler.holds(adapter.pointer) or not all(c.idle for c in bound):
                    raise BadRequest("the adapter is in use; close its sessions first")
                for context in bound:
                    context.bind((), ())
                return self._adapters.pop(adapter.pointer)

        adapter = self._scheduler.call(let_go).result()
        with self._loading:  # a load on another thread holds up this caller, not the streams
            if self._model:
                self._library.c.llama_adapter_lora_free(adapter.pointer)

    def _own(self, handle: AdapterHandle) -> LlamaAdapter:
        if not isinstance(handle, LlamaAdapter) or self._adapters.get(handle.pointer) != handle:
            raise BadRequest("the adapter is not loaded in this engine; load it first")
        return handle

    def session(
        self,
        adapters: Sequence[tuple[AdapterHandle, float]] = (),
        *,
        prompt: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> Future[Session]:
        """A session under these adapters when its turn has come; see engine.base.Engine."""
        if max_tokens is not None and max_tokens < 1:
            raise BadRequest("a session needs room for one token or more", param="max_tokens")
        with self._lock:
            active = _merged([(self._own(handle), float(scale)) for handle, scale in adapters])
            opening = self._scheduler.open(
                tuple(sorted((adapter.key, scale) for adapter, scale in active)),
                [(adapter.pointer, scale) for adapter, scale in active],
                prompt=tuple(prompt),
                need_tokens=max_tokens or self._scheduler.context_tokens,
            )
        out: Future[Session] = Future()

        def opened(opening: Future[Seat]) -> None:
            wanted = out.set_running_or_notify_cancel()
            if opening.cancelled():
                return  # only the caller can cancel, so `out` is cancelled too
            error = opening.exception()
            if error is None and not wanted:
                self._scheduler.leave(opening.result())
            elif error is None:
                out.set_result(LlamaSession(self._scheduler, opening.result(), self._n_vocab))
            elif wanted:
                out.set_exception(error)

        out.add_done_callback(lambda out: opening.cancel() if out.cancelled() else None)
        opening.add_done_callback(opened)
        return out

    def close(self) -> None:
        """Free contexts, adapters and model; idempotent."""
        self._scheduler.stop()
        with self._loading, self._lock:
            for pointer in self._adapters:
                self._library.c.llama_adapter_lora_free(pointer)
            self._adapters.clear()
            self._vocabulary.close()
            if self._model:
                self._library.c.llama_model_free(self._model)
                self._model = 0


def _merged(adapters: Iterable[tuple[LlamaAdapter, float]]) -> list[tuple[LlamaAdapter, float]]:
    """Each adapter once with the sum of its scales, those without effect left out.

    llama.cpp would keep the first of two equal ones and drop the other.
    """
    total: dict[int, tuple[LlamaAdapter, float]] = {}
    for adapter, scale in adapters:
        before = total[adapter.pointer][1] if adapter.pointer in total else 0.0
        total[adapter.pointer] = (adapter, before + scale)
        if not math.isfinite(ctypes.c_float(before + scale).value):
            raise BadRequest(f"the scale of adapter {adapter.key[:12]} is not a finite number")
    return [(adapter, scale) for adapter, scale in total.values() if scale != 0.0]


class LlamaSession:
    """One sequence; see engine.base.Session."""

    def __init__(self, scheduler: Scheduler, seat: Seat, n_vocab: int) -> None:
        self._scheduler, self._seat, self._n_vocab = scheduler, seat, n_vocab
        self._tokens: list[int] = []
        self._cached = list(seat.row.tokens)
        self.cached_tokens = 0
        self._closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """Every token fed and not rolled back."""
        return self._tokens

    def submit(self, tokens: Sequence[int], *, every: bool = False) -> Future[FloatArray]:
        """Feed tokens; see engine.base.Session. A bad call fails its future, nothing else."""
        future: Future[FloatArray] = Future()
        try:
            tokens = [index(token) for token in tokens]  # numpy's integers are ids as well
        except TypeError:
            future.set_exception(BadRequest("token ids must be whole numbers"))
            return future
        if error := self._fault(tokens):
            future.set_exception(error)
            return future
        keep = len(self._tokens)

        def undo() -> None:
            del self._tokens[keep:]

        skip = 0
        if self._cached and not every:  # the last token is always fed again (bug-log A38)
            skip = min(common_prefix(self._cached, tokens), len(tokens) - 1)
            self.cached_tokens = skip
        self._cached = []
        self._tokens.extend(tokens)
        job = Job(
            keep_tokens=keep + skip,
            tokens=tokens[skip:],
            every=every,
            future=future,
            undo=undo,
        )
        self._scheduler.submit(self._seat, job)
        return future

    def _fault(self, tokens: Sequence[int]) -> FloeError | None:
        room = self._seat.row.reserved_tokens
        if self._closed:
            return BadRequest("the session is closed")
        if self._seat.job is not None:
            return BadRequest("the session is still busy with the tokens before")
        if not tokens:
            return BadRequest("there are no tokens to feed", param="prompt")
        if any(not 0 <= t < self._n_vocab for t in tokens):
            return BadRequest(f"token ids must be between 0 and {self._n_vocab - 1}")
        if len(self._tokens) + len(tokens) > room:
            return ContextTooLong(
                f"{len(self._tokens) + len(tokens)} tokens are more than the {room} reserved for "
                "this session: ask for fewer tokens",
                param="max_tokens",
            )
        return None

    def feed(self, tokens: Sequence[int], *, every: bool = False) -> FloatArray:
        """`submit` and wait."""
        return self.submit(tokens, every=every).result()

    def rollback(self, n_tokens: int) -> None:
        """Forget the last `n_tokens`.

        Raises:
            BadRequest: more than were fed, or a feed is running.
        """
        if not 0 <= n_tokens <= len(self._tokens) or self._seat.job is not None:
            raise BadRequest(f"cannot roll back {n_tokens} of {len(self._tokens)} tokens now")
        if n_tokens:
            del self._tokens[-n_tokens:]

    def fork(self) -> LlamaSession:
        """A second session that goes on from here.

        Raises:
            Busy: no room for it.
        """
        if self._closed or self._seat.job is not None:
            raise BadRequest("cannot fork a closed or busy session")

        def twin() -> Seat:
            self._seat.context.truncate(self._seat.row, len(self._tokens))
            self._cached = []  # what was cached beyond these tokens has gone with them
            return self._scheduler.fork(self._seat)

        other = LlamaSession(self._scheduler, self._scheduler.call(twin).result(), self._n_vocab)
        other._tokens, other._cached = list(self._tokens), []
        return other

    def close(self) -> None:
        """Give the row back; what is in it may serve as a prefix later. Idempotent."""
        if not self._closed:
            self._closed = True
            self._scheduler.leave(self._seat)
