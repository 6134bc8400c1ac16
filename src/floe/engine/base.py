"""The engine protocol. V = the tokenizer's real ids, T = tokens fed.

`floe.testing.engine_conformance` is the list every engine passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floe.core.model import ModelInfo

FloatArray = NDArray[np.float32]


class AdapterHandle(Protocol):
    """An adapter in the engine's memory; `key` is its content digest."""

    @property
    def key(self) -> str: ...


class Session(Protocol):
    """One growing sequence of tokens under one fixed set of adapters."""

    @property
    def tokens(self) -> Sequence[int]:
        """Every token fed and not rolled back."""
        ...

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the first feed came from the prefix cache."""
        ...

    def submit(self, tokens: Sequence[int], *, every: bool = False) -> Future[FloatArray]:
        """Feed tokens; log-probabilities (natural log) after the last, or after each of them.

        Shape (V,), or (T, V) with `every`. One submit at a time per session. The array is the
        caller's own. The future fails with FloeError, never kills the engine.
        """
        ...

    def feed(self, tokens: Sequence[int], *, every: bool = False) -> FloatArray:
        """`submit` and wait."""
        ...

    def rollback(self, n_tokens: int) -> None:
        """Forget the last `n_tokens`; the next feed is as if they had never been fed.

        Raises:
            BadRequest: more than were fed, or a feed is running.
        """
        ...

    def fork(self) -> Session:
        """A second session that goes on from here on its own."""
        ...

    def close(self) -> None:
        """Give the sequence back; idempotent. Its tokens may serve as a prefix later."""
        ...


class Engine(Protocol):
    """A model in memory with adapters beside it."""

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, control tokens written in it are recognised."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        ...

    def load_adapter(self, path: Path, *, key: str) -> AdapterHandle:
        """Load a LoRA in GGUF form, validated first.

        Raises:
            BadAdapter: wrong base, wrong shapes, or nothing in it matches the model.
        """
        ...

    def unload_adapter(self, handle: AdapterHandle) -> None:
        """Free it; sessions that use it must be closed before."""
        ...

    def session(
        self,
        adapters: Sequence[tuple[AdapterHandle, float]] = (),
        *,
        prompt: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> Future[Session]:
        """A session with room for `max_tokens` in all, when its turn has come.

        `prompt` is not fed; it chooses the best cached prefix.

        Raises (in the future):
            ContextTooLong: more than the context holds.
            Busy: the queue is full.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...
