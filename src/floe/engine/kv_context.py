"""One llama_context: a KV cache shared by a few sequences under one set of adapters.

Only the scheduler's thread calls into it. V = real ids.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import FloeError
from floe.engine.llama_library import Library

AdapterKey = tuple[tuple[str, float], ...]
"""(adapter digest, scale) pairs, sorted: what every cached thing is keyed by."""

# On a CPU flash attention makes prefill 10-35 % faster; decode is 5 % faster at 100 tokens, 12 %
# slower at 600, 35 % at 1600. It rounds otherwise in other chunks, so exact checks go without.
FLASH_ATTENTION_OFF, FLASH_ATTENTION_ON = 0, 1
KV_TYPES = {"F16": 1, "F32": 0, "Q8_0": 8}
"""ggml's type ids of what keys and values may be cached in."""


@dataclass(frozen=True, kw_only=True)
class KvSettings:
    """How a context computes: cache type, flash attention, tokens in one batch at most."""

    kv_type: str = "F16"
    flash_attention: bool = True
    batch_tokens: int = 512


@dataclass(kw_only=True, eq=False)
class KvSequence:
    """A row of the KV cache: the tokens in it, and whether a session owns it."""

    id: int
    tokens: list[int] = field(default_factory=list)
    open: bool = False
    reserved_tokens: int = 0
    last_used: int = 0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Tokens to append to one sequence in one decode; `wanted` = positions that need logits."""

    sequence: KvSequence
    tokens: Sequence[int]
    wanted: Sequence[int]


class KvContext:
    """A context bound to one adapter key until it is idle and bound to another."""

    def __init__(
        self,
        library: Library,
        model: int,
        *,
        n_ctx: int,
        n_seq: int,
        threads: int,
        n_vocab: int,
        settings: KvSettings = KvSettings(),
    ) -> None:
        self._c, self._n_vocab, self._n_threads = library.c, n_vocab, threads
        kv_type = KV_TYPES[settings.kv_type]
        flash = FLASH_ATTENTION_ON if settings.flash_attention else FLASH_ATTENTION_OFF
        n_batch = min(n_ctx, settings.batch_tokens)
        self._ctx = library.new_context(
            model, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_seq_max=n_seq,
            n_threads=threads, n_threads_batch=threads, kv_unified=True,
            flash_attn_type=flash, type_k=kv_type, type_v=kv_type,
        )  # fmt: skip
        self._memory = self._c.llama_get_memory(self._ctx)
        self.n_ctx = int(self._c.llama_n_ctx(self._ctx))
        self.n_batch = int(self._c.llama_n_batch(self._ctx))
        self._batch = self._c.llama_batch_init(self.n_batch, 0, 1)
        self.sequences = [KvSequence(id=i) for i in range(n_seq)]
        self.key: AdapterKey | None = None

    # --- adapters ---

    def bind(self, key: AdapterKey, adapters: Sequence[tuple[int, float]]) -> None:
        """Apply these adapters (pointers with scales) from now on; forgets every token."""
        for sequence in self.sequences:
            self.forget(sequence)
        n = len(adapters)
        pointers = (ctypes.c_void_p * max(n, 1))(*[pointer for pointer, _ in adapters])
        scales = (ctypes.c_float * max(n, 1))(*[scale for _, scale in adapters])
        if self._c.llama_set_adapters_lora(self._ctx, pointers, n, scales):
            self.key = None
            raise FloeError("llama.cpp refused the adapters; the request was not answered")
        self.key = key

    @property
    def idle(self) -> bool:
        """No session is open here."""
        return not any(s.open for s in self.sequences)

    # --- tokens ---

    def truncate(self, sequence: KvSequence, n_tokens: int) -> None:
        """Keep the first `n_tokens` of a sequence."""
        if n_tokens < len(sequence.tokens):
            self._c.llama_memory_seq_rm(self._memory, sequence.id, n_tokens, -1)
            del sequence.tokens[n_tokens:]

    def forget(self, sequence: KvSequence) -> None:
        """Empty a sequence."""
        self._c.llama_memory_seq_rm(self._memory, sequence.id, -1, -1)
        sequence.tokens.clear()

    def copy_prefix(self, source: KvSequence, target: KvSequence, n_tokens: int) -> None:
        """Make `target` the first `n_tokens` of `source`; cells are shared, not copied."""
        self.forget(target)
        self._c.llama_memory_seq_cp(self._memory, source.id, target.id, 0, n_tokens)
        target.tokens[:] = source.tokens[:n_tokens]

    def decode(self, pieces: Sequence[Piece]) -> list[NDArray[np.float32]]:
        """Append the pieces in one call; per piece the logits (wanted, V).

        They are valid until the next decode.

        Raises:
            FloeError: llama.cpp failed; every piece's sequence is as before.
        """
        rows = self._fill(pieces)
        code = self._c.llama_decode(self._ctx, self._batch)
        if code != 0:
            for piece in pieces:
                start = len(piece.sequence.tokens)
                self._c.llama_memory_seq_rm(self._memory, piece.sequence.id, start, -1)
            raise FloeError(f"llama.cpp failed to decode (code {code}); the request was stopped")
        out = []
        for piece, wanted in zip(pieces, rows, strict=True):
            piece.sequence.tokens.extend(piece.tokens)
            out.append(self._logits(wanted))
        return out

    def _fill(self, pieces: Sequence[Piece]) -> list[list[int]]:
        batch, at, rows = self._batch, 0, []
        for piece in pieces:
            position = len(piece.sequence.tokens)
            for offset, token in enumerate(piece.tokens):
                i = at + offset
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + offset, 1
                batch.seq_id[i][0], batch.logits[i] = piece.sequence.id, 0
            wanted = [at + w for w in piece.wanted]
            for row in wanted:
                batch.logits[row] = 1
            rows.append(wanted)
            at += len(piece.tokens)
        batch.n_tokens = at
        return rows

    def _logits(self, rows: list[int]) -> NDArray[np.float32]:
        views = [
            np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._ctx, row), (self._n_vocab,))
            for row in rows
        ]
        if len(views) == 1:
            return views[0].reshape(1, -1)
        return np.stack(views) if views else np.empty((0, self._n_vocab), np.float32)

    def use_threads(self, n_threads: int) -> None:
        """Decode with so many threads from now on."""
        if n_threads != self._n_threads:
            self._c.llama_set_n_threads(self._ctx, n_threads, n_threads)
            self._n_threads = n_threads

    def close(self) -> None:
        """Free the context."""
        self._c.llama_batch_free(self._batch)
        self._c.llama_free(self._ctx)


def log_softmax(logits_TV: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural log-probabilities of logits, in new memory; one NaN or infinity makes a row NaN."""
    out: NDArray[np.float32] = logits_TV - logits_TV.max(axis=-1, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=-1, keepdims=True))
    return out
