"""A session of the torch engine: its tokens, its cache, its adapters. Imports no torch itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from floe.core.errors import BadRequest, ContextTooLong, FloeError
from floe.engine.base import FloatArray

if TYPE_CHECKING:
    from floe.engine.torch_engine import TorchEngine


class Delta(NamedTuple):
    """What an adapter adds to one linear layer: scale * x A' B', with A (R, I) and B (O, R)."""

    a: Any
    b: Any
    scale: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchAdapter:
    """A loaded adapter; `deltas` by module name, e.g. "model.layers.0.self_attn.q_proj"."""

    key: str
    deltas: Mapping[str, Delta]


Mix: TypeAlias = tuple[tuple[TorchAdapter, float], ...]


class TorchSession:
    """A `Session` of TorchEngine."""

    def __init__(
        self,
        engine: TorchEngine,
        adapters: Mix,
        max_tokens: int,
    ) -> None:
        self.adapters = adapters
        self._engine, self._max_tokens = engine, max_tokens
        self._tokens: list[int] = []
        self._cache = engine.empty_cache()
        self._closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """Every token fed and not rolled back."""
        return tuple(self._tokens)

    @property
    def cached_tokens(self) -> int:
        """Always 0: this engine keeps no prefixes."""
        return 0

    def submit(self, tokens: Sequence[int], *, every: bool = False) -> Future[FloatArray]:
        """Feed tokens; a future that is done, with (V,), or (T, V) with `every`."""
        future: Future[FloatArray] = Future()
        try:
            future.set_result(self._step(tokens, every=every))
        except FloeError as error:
            future.set_exception(error)
        return future

    def feed(self, tokens: Sequence[int], *, every: bool = False) -> FloatArray:
        """`submit` and wait."""
        return self.submit(tokens, every=every).result()

    def rollback(self, n_tokens: int) -> None:
        """Forget the last `n_tokens`.

        Raises:
            BadRequest: more than were fed.
            FloeError: the session is closed.
        """
        self._check_open()
        if not 0 <= n_tokens <= len(self._tokens):
            raise BadRequest(f"cannot roll back {n_tokens} of {len(self._tokens)} tokens")
        self._cut(len(self._tokens) - n_tokens)

    def fork(self) -> TorchSession:
        """A second session from here on; both must be closed.

        Raises:
            FloeError: the session or its engine is closed.
        """
        self._check_open()
        twin = self._engine.session(self.adapters, max_tokens=self._max_tokens).result()
        assert isinstance(twin, TorchSession)
        twin._tokens, twin._cache = list(self._tokens), copy.deepcopy(self._cache)
        return twin

    def close(self) -> None:
        """Give the memory back; idempotent."""
        if not self._closed:
            self._closed, self._cache = True, None
            self._engine.forget(self)

    def _check_open(self) -> None:
        if self._closed:
            raise FloeError("the session is closed; open a new one")

    def _step(self, tokens: Sequence[int], *, every: bool) -> FloatArray:
        self._check_open()
        n_vocab = self._engine.info.n_vocab
        if not tokens:
            raise BadRequest("nothing to feed: tokens is empty", param="tokens")
        if not all(0 <= t < n_vocab for t in tokens):
            raise BadRequest(f"a token id is outside the vocabulary of {n_vocab}", param="tokens")
        before = len(self._tokens)
        if before + len(tokens) > self._max_tokens:
            raise ContextTooLong(f"the session has room for {self._max_tokens} tokens")
        try:
            out = self._engine.forward(tokens, self._cache, self.adapters, every=every)
        except RuntimeError as error:
            self._cut(before)
            raise FloeError("the model failed on a step; the session is as before it") from error
        self._tokens += tokens
        return out

    def _cut(self, length: int) -> None:
        """Shorten every layer to `length`: after a failed step some have grown, some have not."""
        del self._tokens[length:]
        if length == 0:
            self._cache = self._engine.empty_cache()
            return
        for layer in self._cache.layers:
            extra = layer.get_seq_length() - length
            if extra > 0:
                layer.crop(-extra)
