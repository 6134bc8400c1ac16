"""A made-up engine: numpy only, deterministic, fast, with switches for every kind of trouble.

Vocabulary: ids 0-255 are single bytes, then `merges`, then the control tokens of CONTROLS. The
distribution after some tokens is a pure function of (seed, tokens, adapters), so a rollback, a
fork or a second session can be checked bit for bit. Legend: V = vocabulary, T = tokens fed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from floe.core.errors import BadAdapter, BadRequest, Busy, ContextTooLong, FloeError
from floe.core.model import ModelInfo
from floe.engine.base import AdapterHandle, FloatArray, Session

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MERGES = (b"the", b" the", b" a", b"an", b"in", b" is", b"er", b"ing", b" and", b"  ", b". ", b"42")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ANSWER_STARTS = b"<|im_start|>assistant\n"
_MAGIC = "floe-fake-adapter"
_CONFIDENCE = 0.97
_CACHED_SEQUENCES = 16

AdapterKey = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FakeAdapter:
    """A loaded fake adapter: a key, and the scripted answers it brings."""

    key: str
    answers: Mapping[str, str] = field(default_factory=dict)


def write_fake_adapter(path: Path, *, answers: Mapping[str, str] | None = None) -> Path:
    """A file that `ScriptedEngine.load_adapter` takes; `answers` win over the engine's own."""
    path.write_text(json.dumps({"magic": _MAGIC, "answers": dict(answers or {})}), encoding="utf-8")
    return path


class ScriptedEngine:
    """An `Engine` without a model.

    `answers` maps a piece of the prompt to the text that then follows with probability of at
    least 0.97 a token, closed by the end token. Anything else is noise that is the same on every
    run. `ended` is how probable the end token is where nothing is scripted.

    Counters to assert on: `open_sessions`, `sessions_opened`, `tokens_fed`, `submits`,
    `adapters_loaded`. Switches: `fail_after`, `refuse_sessions`, `heal`, `pause`, `resume`.
    """

    def __init__(
        self,
        *,
        name: str = "scripted",
        merges: Sequence[bytes] = MERGES,
        answers: Mapping[str, str] | None = None,
        seed: int = 0,
        context_tokens: int = 4096,
        max_sessions: int | None = None,
        ended: float = 0.02,
    ) -> None:
        self._pieces = [bytes([b]) for b in range(256)] + list(merges) + [b""] * len(CONTROLS)
        self._control = {c: 256 + len(merges) + i for i, c in enumerate(CONTROLS)}
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if piece}
        self._longest = max(map(len, self._ids))
        self._answers = dict(answers or {})
        self._seed, self._ended, self._max_sessions = seed, ended, max_sessions
        digest = hashlib.sha256(repr((list(merges), seed)).encode()).hexdigest()
        self._info = ModelInfo(
            name=name,
            digest=digest,
            architecture="scripted",
            n_layers=1,
            width=8,
            n_heads=2,
            n_kv_heads=1,
            n_vocab=len(self._pieces),
            context_tokens=context_tokens,
            eos_ids=frozenset(self._control[c] for c in CONTROLS[1:]),
            tokenizer_digest=hashlib.sha256(repr(list(merges)).encode()).hexdigest(),
            chat_template=CHAT_TEMPLATE,
            names=frozenset({name}),
            linears={"blk.0.attn_q": (8, 8), "blk.0.attn_v": (4, 8)},
        )
        self._base_logits_V = self._likely()
        self._lock = threading.RLock()
        self._cache: list[tuple[AdapterKey, tuple[int, ...]]] = []
        self._pending: list[tuple[Future[FloatArray], Callable[[], None]]] = []
        self._paused = self._closed = False
        self._fail: tuple[int, FloeError] | None = None
        self._refusal: FloeError | None = None
        self._loaded: dict[int, FakeAdapter] = {}
        self._open: dict[int, ScriptedSession] = {}
        self.sessions_opened = self.tokens_fed = self.submits = 0

    @property
    def info(self) -> ModelInfo:
        """A made-up model card with ChatML as its template."""
        return self._info

    @property
    def open_sessions(self) -> int:
        """Sessions that were not closed; 0 after a clean stream."""
        return len(self._open)

    @property
    def adapters_loaded(self) -> int:
        """Adapters that were not unloaded."""
        return len(self._loaded)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Longest match first; with `special`, the strings of CONTROLS become control tokens."""
        data, ids, at = text.encode("utf-8"), [], 0
        controls = [(c.encode(), i) for c, i in self._control.items()] if special else []
        while at < len(data):
            control = next(((c, i) for c, i in controls if data.startswith(c, at)), None)
            piece, token = control if control else self._longest_piece(data[at:])
            ids.append(token)
            at += len(piece)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; empty for control tokens."""
        return self._pieces[token]

    def log_probs(self, tokens: Sequence[int], adapters: AdapterKey = ()) -> FloatArray:
        """The distribution after `tokens` under (key, weight) pairs: what sessions return."""
        with self._lock:
            answers = dict(self._answers)
            for adapter in self._loaded.values():
                if adapter.key in {key for key, _ in adapters}:
                    answers.update(adapter.answers)
        words = np.asarray(tokens, dtype=np.int64).tobytes() + repr((self._seed, adapters)).encode()
        seed = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")
        noise_V = np.random.default_rng(seed).normal(0.0, 2.0, len(self._pieces))
        probs_V = np.exp(self._base_logits_V + noise_V)
        probs_V *= (1.0 - self._ended) / probs_V.sum()
        probs_V[self._control[CONTROLS[1]]] += self._ended
        scripted = self._scripted(tokens, answers)
        if scripted is not None:
            probs_V *= 1.0 - _CONFIDENCE
            probs_V[scripted] += _CONFIDENCE
        return np.log(probs_V).astype(np.float32)

    def load_adapter(self, path: Path, *, key: str) -> AdapterHandle:
        """Take a file of `write_fake_adapter`, or any GGUF (of which nothing is read).

        Raises:
            BadAdapter: neither of the two.
        """
        self._check_open()
        data = path.read_bytes() if path.is_file() else b""
        answers: Mapping[str, str] = {}
        if not data.startswith(b"GGUF"):
            try:
                content = json.loads(data)
                if content["magic"] != _MAGIC:
                    raise KeyError("magic")
                answers = content["answers"]
            except (ValueError, KeyError, TypeError) as error:
                raise BadAdapter(f"{path.name} is not an adapter: write a GGUF file") from error
        handle = FakeAdapter(key, answers)
        with self._lock:
            self._loaded[id(handle)] = handle
        return handle

    def unload_adapter(self, handle: AdapterHandle) -> None:
        """Forget it.

        Raises:
            BadRequest: an open session still uses it, or it is not loaded.
        """
        with self._lock:
            if any(handle is h for s in self._open.values() for h, _ in s.adapters):
                raise BadRequest("an open session still uses this adapter")
            if self._loaded.pop(id(handle), None) is None:
                raise BadRequest("this adapter is not loaded")

    def session(
        self,
        adapters: Sequence[tuple[AdapterHandle, float]] = (),
        *,
        prompt: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> Future[Session]:
        """A session at once; the future fails with ContextTooLong, Busy or the set refusal."""
        future: Future[Session] = Future()
        try:
            self._check_open()
            future.set_result(self._new_session(adapters, prompt, max_tokens))
        except FloeError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Later calls fail; submits held by `pause` are cancelled."""
        with self._lock:
            self._closed = True
            pending, self._pending = self._pending, []
        for future, _ in pending:
            future.cancel()

    def fail_after(self, n_tokens: int, error: FloeError | None = None) -> None:
        """Once `n_tokens` more tokens were fed (in all sessions), every submit fails."""
        self._fail = (self.tokens_fed + n_tokens, error or FloeError("the scripted engine failed"))

    def refuse_sessions(self, error: FloeError | None = None) -> None:
        """Let every new session fail, with Busy unless told otherwise."""
        self._refusal = error or Busy("the scripted engine takes no more sessions")

    def heal(self) -> None:
        """End `fail_after` and `refuse_sessions`."""
        self._fail = self._refusal = None

    def pause(self) -> None:
        """Keep the futures of later submits pending until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Work off what `pause` held back, in order."""
        with self._lock:
            self._paused = False
            pending, self._pending = self._pending, []
        for _, work in pending:
            work()

    def _likely(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Base logits that make readable ASCII likely, so that made-up text looks like text."""
        logits_V = np.full(len(self._pieces), -9.0)
        for token, piece in enumerate(self._pieces):
            if piece and all(32 <= b < 127 for b in piece):
                logits_V[token] = 0.0 if piece.strip().isalpha() else -2.0
        return logits_V

    def _longest_piece(self, data: bytes) -> tuple[bytes, int]:
        for length in range(min(self._longest, len(data)), 0, -1):
            if data[:length] in self._ids:
                return data[:length], self._ids[data[:length]]
        raise AssertionError("every single byte is a token")

    def _scripted(self, tokens: Sequence[int], answers: Mapping[str, str]) -> int | None:
        """The token a script wants next, or None where no script applies."""
        if not answers:
            return None
        names = {i: c.encode() for c, i in self._control.items()}
        text = b"".join(names.get(t, self._pieces[t]) for t in tokens)
        answer = next((a for key, a in answers.items() if key.encode() in text), None)
        if answer is None:
            return None
        wanted, (_, chat, so_far) = answer.encode(), text.rpartition(_ANSWER_STARTS)
        done = len(so_far) if wanted.startswith(so_far) else None
        if not chat:  # no template: go on from the longest piece of the answer that ends the text
            done = next(n for n in range(len(wanted), -1, -1) if text.endswith(wanted[:n]))
        if done is None:
            return None
        if done == len(wanted):
            return self._control[CONTROLS[1]]
        return self._longest_piece(wanted[done:])[1]

    def _check_open(self) -> None:
        if self._closed:
            raise FloeError("the engine is closed; make a new one")

    def _new_session(
        self,
        adapters: Sequence[tuple[AdapterHandle, float]],
        prompt: Sequence[int],
        max_tokens: int | None,
    ) -> ScriptedSession:
        limit = self._info.context_tokens
        if max(len(prompt), max_tokens or 0) > limit:
            raise ContextTooLong(f"the request does not fit the context of {limit} tokens")
        with self._lock:
            if self._refusal:
                raise self._refusal
            if self._max_sessions is not None and len(self._open) >= self._max_sessions:
                raise Busy(f"all {self._max_sessions} sessions are taken; try again")
            key = tuple(sorted((h.key, float(w)) for h, w in adapters if w != 0.0))
            prefix: tuple[int, ...] = max(
                (t for k, t in self._cache if k == key),
                key=lambda t: _common(t, prompt),
                default=(),
            )
            session = ScriptedSession(self, list(adapters), key, max_tokens or limit, prefix)
            self._open[id(session)] = session
            self.sessions_opened += 1
            return session

    def _submit(self, future: Future[FloatArray], work: Callable[[], None]) -> None:
        with self._lock:
            if self._paused:
                self._pending.append((future, work))
                return
        work()

    def _count(self, n_tokens: int) -> None:
        with self._lock:
            if self._closed:
                raise FloeError("the engine is closed; make a new one")
            self.submits += 1
            if self._fail and self.tokens_fed + n_tokens > self._fail[0]:
                raise self._fail[1]
            self.tokens_fed += n_tokens

    def _closed_session(self, session: ScriptedSession) -> None:
        with self._lock:
            if self._open.pop(id(session), None) is not None and session.tokens:
                self._cache.append((session.key, tuple(session.tokens)))
                del self._cache[:-_CACHED_SEQUENCES]


class ScriptedSession:
    """A `Session` of ScriptedEngine; strict where a real engine would only misbehave."""

    def __init__(
        self,
        engine: ScriptedEngine,
        adapters: list[tuple[AdapterHandle, float]],
        key: AdapterKey,
        max_tokens: int,
        prefix: tuple[int, ...],
    ) -> None:
        self.adapters, self.key = adapters, key
        self._engine, self._max_tokens, self._prefix = engine, max_tokens, prefix
        self._tokens: list[int] = []
        self._cached: int | None = None
        self._busy: Future[FloatArray] | None = None
        self._closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """Every token fed and not rolled back."""
        return tuple(self._tokens)

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the first feed an earlier session had left behind."""
        return self._cached or 0

    def submit(self, tokens: Sequence[int], *, every: bool = False) -> Future[FloatArray]:
        """Feed tokens; log-probabilities (V,), or (T, V) with `every`.

        Raises:
            BadRequest: a submit is pending, there are no tokens, or an id is unknown.
        """
        if self._busy is not None and not self._busy.done():
            raise BadRequest("one submit at a time: the last one is still pending")
        if not tokens:
            raise BadRequest("nothing to feed: tokens is empty")
        n_vocab = self._engine.info.n_vocab
        if any(not 0 <= t < n_vocab for t in tokens):
            raise BadRequest(f"token ids must be between 0 and {n_vocab - 1}")
        future: Future[FloatArray] = Future()
        self._busy = future

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._step(list(tokens), every))
            except Exception as error:  # a future carries whatever went wrong to its reader
                future.set_exception(error)

        self._engine._submit(future, work)
        return future

    def feed(self, tokens: Sequence[int], *, every: bool = False) -> FloatArray:
        """`submit` and wait."""
        return self.submit(tokens, every=every).result(timeout=30)

    def rollback(self, n_tokens: int) -> None:
        """Forget the last `n_tokens`.

        Raises:
            BadRequest: more than were fed, or a submit is pending.
        """
        if not 0 <= n_tokens <= len(self._tokens):
            raise BadRequest(f"cannot roll back {n_tokens} of {len(self._tokens)} tokens")
        if self._busy is not None and not self._busy.done():
            raise BadRequest("cannot roll back while a submit is pending")
        del self._tokens[len(self._tokens) - n_tokens :]

    def fork(self) -> ScriptedSession:
        """A second session from here on; both must be closed."""
        twin = self._engine._new_session(self.adapters, (), self._max_tokens)
        twin._tokens, twin._cached = list(self._tokens), 0
        return twin

    def close(self) -> None:
        """Give the sequence back; idempotent."""
        if not self._closed:
            self._closed = True
            self._engine._closed_session(self)

    def _step(self, tokens: list[int], every: bool) -> FloatArray:
        if self._closed:
            raise FloeError("the session is closed")
        if len(self._tokens) + len(tokens) > self._max_tokens:
            raise ContextTooLong(f"the session has room for {self._max_tokens} tokens")
        cached = 0
        if self._cached is None:
            cached = self._cached = min(_common(self._prefix, tokens), len(tokens) - 1)
        self._engine._count(len(tokens) - (0 if every else cached))
        rows = []
        for token in tokens:
            self._tokens.append(token)
            if every:
                rows.append(self._engine.log_probs(self._tokens, self.key))
        return np.stack(rows) if every else self._engine.log_probs(self._tokens, self.key)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
