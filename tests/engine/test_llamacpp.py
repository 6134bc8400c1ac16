"""The serving engine on a tiny model in F32: no seat, adapter or future is lost in any order."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floe.adapters.formats import write_lora_gguf
from floe.adapters.peft import read_peft
from floe.core import gguf
from floe.core.errors import BadAdapter, BadModel, BadRequest, Busy, FloeError
from floe.engine.base import FloatArray, Session
from floe.engine.jobs import Seat
from floe.engine.kv_context import KvContext, Piece
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.engine.scheduler import CHUNK_SHARED_TOKENS
from floe.testing.tiny_model import TinyModel, make_tiny_adapter, make_tiny_model

WAIT_S = 30.0
ATOL = 2e-4
PROMPT = [40, 41, 42, 43, 44, 45, 46, 47]
Route = tuple[tuple[LlamaAdapter, float], ...]


@dataclass(frozen=True, kw_only=True)
class Files:
    model: TinyModel
    adapters: tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tiny")
    model = make_tiny_model(folder, padded_rows=5)
    engine = LlamaCppEngine(model.gguf, threads=1)
    paths = []
    for seed in (1, 2):
        peft = make_tiny_adapter(folder / str(seed), seed=seed)
        path = folder / f"{seed}.gguf"
        tensors = read_peft(peft, engine.info)
        write_lora_gguf(path, tensors, architecture="llama", dtype=np.float32)
        paths.append(path)
    engine.close()
    return Files(model=model, adapters=(paths[0], paths[1]))


Make = Callable[..., LlamaCppEngine]


@pytest.fixture
def make(files: Files) -> Iterator[Make]:
    made: list[LlamaCppEngine] = []

    def make(**settings: int) -> LlamaCppEngine:
        settings = {"context_tokens": 256, "max_contexts": 2, "sessions_per_context": 2, **settings}
        engine = LlamaCppEngine(files.model.gguf, threads=1, kv_f32=True, **settings)  # type: ignore[arg-type]
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def _settle(engine: LlamaCppEngine) -> None:
    """Until the engine's thread has done what was asked for before."""
    for _ in range(2):
        engine._scheduler.call(lambda: None).result(WAIT_S)


def _rest(engine: LlamaCppEngine, session: Session) -> None:
    """Until the engine has seen that the session's feed was cancelled."""
    while session._seat.job is not None:  # type: ignore[attr-defined]
        _settle(engine)


def _open(engine: LlamaCppEngine, *route: tuple[LlamaAdapter, float], n: int = 64) -> Session:
    return engine.session(route, max_tokens=n).result(WAIT_S)


def _fresh(
    engine: LlamaCppEngine, tokens: list[int], *route: tuple[LlamaAdapter, float]
) -> FloatArray:
    """The oracle: the tokens one by one in a session of their own, nothing reused."""
    session = _open(engine, *route, n=max(64, len(tokens)))
    for token in tokens:
        out = session.feed([token])
    session.close()
    return out


def _hold(engine: LlamaCppEngine) -> threading.Event:
    """Keep the engine's thread busy until the event is set."""
    release, held = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        assert release.wait(WAIT_S)

    engine._scheduler.call(wait)
    assert held.wait(WAIT_S)
    return release


# --- seats ---


def test_a59_two_hundred_cancelled_openings_leave_no_seat(make: Make) -> None:
    """Cancelled while waiting, at admission or right after: each seat is given back."""
    engine = make(max_waiting=200)
    blocker = _open(engine, n=256)
    release = _hold(engine)
    waiting = [engine.session(max_tokens=200) for _ in range(100)]
    assert sum(w.cancel() for w in waiting[::2]) == 50
    release.set()
    blocker.close()
    for w in waiting[1::2]:
        w.add_done_callback(lambda done: done.cancelled() or done.result().close())
    for opening in [engine.session(max_tokens=200) for _ in range(50)]:
        if not opening.cancel():
            opening.result(WAIT_S).close()
    for w in waiting[1::2]:
        w.exception(WAIT_S)
    _settle(engine)
    assert engine.open_sessions == 0
    assert engine.failure is None


async def test_a59_a_request_cancelled_while_it_waits_gives_its_seat_back(make: Make) -> None:
    """As serving does it: asyncio cancels the future it has wrapped."""
    engine = make(max_contexts=1, sessions_per_context=1)
    first = _open(engine)
    waits = [
        asyncio.ensure_future(asyncio.wrap_future(engine.session(max_tokens=8))) for _ in range(5)
    ]
    await asyncio.sleep(0)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    first.close()
    _open(engine).close()
    _settle(engine)
    assert engine.open_sessions == 0


def test_a_cancelled_opening_that_was_just_admitted_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller cancels between admission and delivery: the seat goes back."""
    engine = make()
    admit = engine._scheduler.open
    admitted: Future[Seat] = Future()
    admitted.set_running_or_notify_cancel()  # as the engine's thread does when it admits
    seats: list[Seat] = []

    def open_slowly(*key: Any, **room: Any) -> Future[Seat]:
        seats.append(admit(*key, **room).result(WAIT_S))
        return admitted

    monkeypatch.setattr(engine._scheduler, "open", open_slowly)
    opening = engine.session(max_tokens=8)
    assert opening.cancel()
    assert engine.open_sessions == 1
    admitted.set_result(seats[0])
    _settle(engine)
    assert engine.open_sessions == 0
    assert seats[0].left


def test_openings_cancelled_at_any_moment_leave_no_seat(make: Make) -> None:
    engine = make()
    for _ in range(200):
        opening = engine.session(max_tokens=8)
        if not opening.cancel():
            opening.result(WAIT_S).close()
    _settle(engine)
    assert engine.open_sessions == 0


def test_room_for_no_token_is_refused(make: Make) -> None:
    engine = make()
    for n in (0, -5):
        with pytest.raises(BadRequest, match="room for one token or more") as caught:
            engine.session(max_tokens=n)
        assert caught.value.param == "max_tokens"


# --- feeds that come to nothing ---


def test_a_cancelled_feed_was_never_fed(make: Make) -> None:
    """The next feed goes on from the tokens before, not across a gap."""
    engine = make()
    session = _open(engine)
    session.feed(PROMPT[:4])
    release = _hold(engine)
    assert session.submit(PROMPT[:2]).cancel()
    release.set()
    _rest(engine, session)
    assert list(session.tokens) == PROMPT[:4]
    assert np.abs(session.feed(PROMPT[4:]) - _fresh(engine, PROMPT)).max() < ATOL


def test_a_failed_feed_was_never_fed(make: Make) -> None:
    """llama.cpp refuses a decode: the error says so, the session and others go on."""
    engine = make()
    session, other = _open(engine), _open(engine)
    session.feed(PROMPT[:4])
    other.feed(PROMPT[:4])
    context = engine._scheduler.contexts[0]
    row = session._seat.row  # type: ignore[attr-defined]
    context._c.llama_memory_seq_rm(context._memory, row.id, 2, -1)  # a gap in positions
    with pytest.raises(FloeError, match=r"llama.cpp failed to decode \(code -\d\)"):
        session.feed(PROMPT[:2])
    assert list(session.tokens) == PROMPT[:4]
    assert np.abs(other.feed(PROMPT[4:]) - _fresh(engine, PROMPT)).max() < ATOL
    assert engine.failure is None


def test_a_decode_that_fails_halfway_leaves_no_trace(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens have entered the cache when llama.cpp gives up: they are taken out again."""
    engine = make()
    session, other = _open(engine), _open(engine)
    session.feed(PROMPT[:4])
    other.feed(PROMPT[:4])
    decode = engine.library.c.llama_decode

    def halfway(*call: Any) -> int:
        decode(*call)
        return 2

    monkeypatch.setattr(engine.library.c, "llama_decode", halfway)
    with pytest.raises(FloeError, match=r"llama.cpp failed to decode \(code 2\)"):
        session.feed([60, 61])
    monkeypatch.undo()
    wanted = _fresh(make(), PROMPT)
    for each in (session, other):
        assert np.abs(each.feed(PROMPT[4:]) - wanted).max() < ATOL


def test_closing_during_a_feed_ends_it(make: Make) -> None:
    engine = make(context_tokens=512)
    session = _open(engine, n=512)
    release = _hold(engine)
    future = session.submit([40] * 500)
    session.close()
    release.set()
    with pytest.raises(FloeError, match="the session was closed"):
        future.result(WAIT_S)
    with pytest.raises(BadRequest, match="the session is closed"):
        session.feed([40])
    with pytest.raises(BadRequest, match="cannot fork a closed or busy session"):
        session.fork()


def test_one_feed_at_a_time(make: Make) -> None:
    engine = make()
    session = _open(engine)
    release = _hold(engine)
    first = session.submit(PROMPT)
    with pytest.raises(BadRequest, match="still busy with the tokens before"):
        session.feed([40])
    with pytest.raises(BadRequest, match="cannot roll back 1 of 8 tokens now"):
        session.rollback(1)
    release.set()
    assert np.abs(first.result(WAIT_S) - _fresh(engine, PROMPT)).max() < ATOL


def test_refusals_of_a_session_say_why(make: Make) -> None:
    engine = make()
    session = _open(engine, n=4)
    v = engine.info.n_vocab
    for tokens, words in (
        ([], "there are no tokens to feed"),
        ([v], f"token ids must be between 0 and {v - 1}"),
        ([1.5], "token ids must be whole numbers"),
        ([1] * 5, "5 tokens are more than the 4 reserved for this session"),
    ):
        with pytest.raises(BadRequest, match=words):
            session.feed(tokens)
    with pytest.raises(BadRequest, match="cannot roll back -1 of 0"):
        session.rollback(-1)


def test_a68_ids_from_numpy_are_ids(make: Make) -> None:
    """They must not reach ctypes as they are, which would end the engine's thread."""
    engine = make()
    tokens = np.array(PROMPT)
    session = engine.session(prompt=tokens, max_tokens=16).result(WAIT_S)
    assert np.abs(session.feed(list(tokens)) - _fresh(engine, PROMPT)).max() < ATOL
    assert list(session.tokens) == PROMPT
    assert engine.failure is None


# --- prefixes ---


def test_a38_the_same_request_twice(make: Make) -> None:
    """A full prefix hit feeds the last token again and answers the same."""
    engine = make()
    answers = []
    for cached in (0, len(PROMPT) - 1, len(PROMPT) - 1):
        session = engine.session(prompt=PROMPT, max_tokens=32).result(WAIT_S)
        answers.append(session.feed(PROMPT))
        assert session.cached_tokens == cached
        session.close()
    assert np.abs(answers[0] - answers[1]).max() < ATOL
    assert np.abs(answers[1] - answers[2]).max() < ATOL


def test_a70_a_prefix_belongs_to_its_adapters_and_weights(make: Make, files: Files) -> None:
    """bug-log A04, A70: base, an adapter and the same at half weight share nothing."""
    engine = make(max_contexts=3)
    a = engine.load_adapter(files.adapters[0], key="a")
    routes: list[Route] = [(), ((a, 1.0),), ((a, 0.5),)]
    truth = [_fresh(engine, PROMPT, *route) for route in routes]
    for i in (0, 1, 2, 2, 1, 0):
        session = engine.session(routes[i], prompt=PROMPT[::-1], max_tokens=32).result(WAIT_S)
        assert len(session._cached) in (0, len(PROMPT))  # type: ignore[attr-defined]
        session.close()
        session = engine.session(routes[i], prompt=PROMPT, max_tokens=32).result(WAIT_S)
        assert np.abs(session.feed(PROMPT) - truth[i]).max() < ATOL
        session.close()
    assert np.abs(truth[1] - truth[2]).max() > 100 * ATOL


def test_a_cached_prefix_survives_rollback_every_and_another_prompt(make: Make) -> None:
    engine = make()
    session = engine.session(prompt=PROMPT, max_tokens=64).result(WAIT_S)
    session.feed(PROMPT)
    session.rollback(3)
    session.close()  # its row still holds what was rolled back
    again = engine.session(prompt=PROMPT, max_tokens=64).result(WAIT_S)
    all_TV = again.feed(PROMPT, every=True)
    assert again.cached_tokens == 0
    for i in (0, 4, 7):
        assert np.abs(all_TV[i] - _fresh(engine, PROMPT[: i + 1])).max() < ATOL
    again.rollback(len(PROMPT))
    other = [*PROMPT[:3], 60, 61]
    assert np.abs(again.feed(other) - _fresh(engine, other)).max() < ATOL
    again.close()
    odd = engine.session(prompt=PROMPT, max_tokens=64).result(WAIT_S)
    assert np.abs(odd.feed([60, 61]) - _fresh(engine, [60, 61])).max() < ATOL  # not its prompt


def test_a_fork_before_the_first_feed(make: Make) -> None:
    """The cached prefix a session was given is not believed to be there after a fork."""
    engine = make()
    session = engine.session(prompt=PROMPT, max_tokens=64).result(WAIT_S)
    session.feed(PROMPT)
    session.close()
    session = engine.session(prompt=PROMPT, max_tokens=64).result(WAIT_S)
    branch = session.fork()
    for each in (session, branch):
        assert np.abs(each.feed(PROMPT) - _fresh(make(), PROMPT)).max() < ATOL


def test_a_fork_without_room_is_busy(make: Make) -> None:
    engine = make(sessions_per_context=1)
    session = _open(engine)
    session.feed(PROMPT)
    with pytest.raises(Busy, match="no room to fork"):
        session.fork()
    assert np.abs(session.feed([50]) - _fresh(engine, [*PROMPT, 50])).max() < ATOL


# --- adapters ---


def test_an_adapter_in_use_cannot_be_unloaded(make: Make, files: Files) -> None:
    """Not under an open session, not under one that waits; afterwards yes, and never twice."""
    engine = make(max_contexts=1, sessions_per_context=1)
    a, b = (engine.load_adapter(p, key=p.stem) for p in files.adapters)
    session = _open(engine, (a, 1.0))
    waiting = engine.session([(b, 1.0)], max_tokens=8)
    for handle in (a, b):
        with pytest.raises(BadRequest, match="the adapter is in use; close its sessions first"):
            engine.unload_adapter(handle)
    session.close()
    second = waiting.result(WAIT_S)
    second.feed(PROMPT)
    engine.unload_adapter(a)
    second.close()
    engine.unload_adapter(b)
    assert all(context.key == () for context in engine._scheduler.contexts)
    for handle in (a, b):
        with pytest.raises(BadRequest, match="is not loaded in this engine; load it first"):
            engine.unload_adapter(handle)
        with pytest.raises(BadRequest, match="is not loaded in this engine"):
            engine.session([(handle, 1.0)])
    _open(engine).feed(PROMPT)


def test_an_adapter_whose_callers_have_gone_is_unloaded(make: Make, files: Files) -> None:
    """A cut stream's session closes behind the unload, a cancelled request still stands in line."""
    engine = make(max_contexts=1, sessions_per_context=1)
    a, b = (engine.load_adapter(p, key=p.stem) for p in files.adapters)
    session = _open(engine, (a, 1.0))
    waiting = engine.session([(b, 1.0)], max_tokens=8)
    gate, calls = threading.Event(), engine._scheduler._calls
    engine._scheduler.call(gate.wait)
    errors: list[BaseException] = []

    def unload() -> None:
        try:
            engine.unload_adapter(a)
            engine.unload_adapter(b)
        except FloeError as error:
            errors.append(error)

    thread = threading.Thread(target=unload)
    thread.start()
    while not calls:  # until the unload stands in the engine's queue
        threading.Event().wait(0.001)
    assert waiting.cancel()
    session.close()
    gate.set()
    thread.join(WAIT_S)
    assert not errors
    assert not thread.is_alive()


def test_unloading_from_many_threads_frees_once(make: Make, files: Files) -> None:
    engine = make()
    handle = engine.load_adapter(files.adapters[0], key="a")
    errors: list[BaseException | None] = []

    def unload() -> None:
        try:
            engine.unload_adapter(handle)
            errors.append(None)
        except FloeError as error:
            errors.append(error)

    _in_threads([unload] * 6)
    assert errors.count(None) == 1
    assert all(e is None or isinstance(e, BadRequest) for e in errors)


def test_a26_more_routes_than_contexts(make: Make, files: Files) -> None:
    """Weights alone make routes: each is served with its own answer."""
    engine = make(max_contexts=2)
    a, b = (engine.load_adapter(p, key=p.stem) for p in files.adapters)
    routes: list[Route] = [(), ((a, 1.0),), ((b, 1.0),), ((a, 0.5), (b, 0.5)), ((a, 0.25),)]
    wide = make(max_contexts=5)
    c, d = (wide.load_adapter(p, key=p.stem) for p in files.adapters)
    for route in (*routes, *routes[::-1]):
        other = tuple((c if handle is a else d, scale) for handle, scale in route)
        ours, theirs = _fresh(engine, PROMPT, *route), _fresh(wide, PROMPT, *other)
        assert np.abs(ours - theirs).max() < ATOL
    assert len(engine._scheduler.contexts) == 2


def test_the_same_adapter_twice_is_the_sum_of_its_scales(make: Make, files: Files) -> None:
    engine = make()
    a = engine.load_adapter(files.adapters[0], key="a")
    whole = _fresh(engine, PROMPT, (a, 1.0))
    assert np.abs(_fresh(engine, PROMPT, (a, 0.25), (a, 0.75)) - whole).max() < ATOL
    assert np.abs(_fresh(engine, PROMPT, (a, 1.0), (a, -1.0)) - _fresh(engine, PROMPT)).max() < ATOL


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a20_a_scale_that_is_no_number(make: Make, files: Files, scale: float) -> None:
    engine = make()
    a = engine.load_adapter(files.adapters[0], key="some-adapter")
    with pytest.raises(BadRequest, match="scale of adapter some-adapter is not a finite number"):
        engine.session([(a, scale)])


def test_a_scale_that_overflows_the_model_is_an_error_not_an_answer(
    make: Make, files: Files
) -> None:
    engine = make()
    a = engine.load_adapter(files.adapters[0], key="a")
    session = _open(engine, (a, 1e38))
    with pytest.raises(FloeError, match="the model gave no numbers; check model and adapters"):
        session.feed(PROMPT)
    session.close()
    assert np.isfinite(_fresh(engine, PROMPT, (a, 1.0))).all()


def test_a25_streams_go_on_while_an_adapter_is_loading(
    make: Make, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that hangs holds up neither feeds nor new sessions, with adapters or without."""
    engine = make()
    a = engine.load_adapter(files.adapters[0], key="a")
    init = engine.library.c.llama_adapter_lora_init
    loading, go = threading.Event(), threading.Event()

    def slow(model: int, path: bytes) -> int:
        loading.set()
        assert go.wait(WAIT_S)
        return int(init(model, path))

    monkeypatch.setattr(engine.library.c, "llama_adapter_lora_init", slow)
    loaded: list[LlamaAdapter] = []
    thread = threading.Thread(
        target=lambda: loaded.append(engine.load_adapter(files.adapters[1], key="b"))
    )
    thread.start()
    assert loading.wait(WAIT_S)
    _fresh(engine, PROMPT, (a, 1.0))
    go.set()
    thread.join(WAIT_S)
    _fresh(engine, PROMPT, (loaded[0], 1.0))


def test_an_adapter_llama_cpp_refuses_is_named_with_its_reason(
    make: Make, files: Files, tmp_path: Path
) -> None:
    engine = make()
    header = gguf.read_header(files.adapters[0])
    tensors = {  # fits by shape, but llama.cpp wants A and B of embeddings the other way round
        "token_embd.weight.lora_a": np.ones((2, 64), np.float32),
        "token_embd.weight.lora_b": np.ones((engine.info.n_vocab + 5, 2), np.float32),
    }
    path = tmp_path / "odd.gguf"
    gguf.write(path, header.metadata, tensors)
    with pytest.raises(BadAdapter, match=r"llama.cpp refused the adapter .*odd\.gguf: .+shape"):
        engine.load_adapter(path, key="odd")
    with pytest.raises(BadAdapter, match="no adapter file at"):
        engine.load_adapter(tmp_path / "none.gguf", key="none")


# --- vocabulary ---


def test_b37_b38_padded_rows_are_no_ids(files: Files, make: Make) -> None:
    """Their logits are cut off before the softmax; ids and digest know nothing of them."""
    engine = make()
    assert engine.vocabulary.n_rows == files.model.n_vocab + 5
    assert engine.info.n_vocab == files.model.n_vocab
    log_probs_V = _fresh(engine, PROMPT)
    assert log_probs_V.shape == (files.model.n_vocab,)
    assert abs(np.exp(log_probs_V.astype(np.float64)).sum() - 1) < 1e-4
    assert engine.token_bytes(files.model.n_vocab) == b""
    with pytest.raises(BadRequest, match="token ids must be between"):
        _open(engine).feed([files.model.n_vocab])


def test_b37_equal_tokenizers_have_equal_digests(files: Files, make: Make, tmp_path: Path) -> None:
    """Padding and weights do not matter, tokens do."""
    bare = LlamaCppEngine(make_tiny_model(tmp_path, seed=9).gguf, threads=1)
    assert bare.info.tokenizer_digest == make().info.tokenizer_digest
    bare.close()
    _rewrite(files.model.gguf, tmp_path / "x.gguf", lambda tokens: tokens.__setitem__(90, "zz"))
    changed = LlamaCppEngine(tmp_path / "x.gguf", threads=1)
    assert changed.info.tokenizer_digest != make().info.tokenizer_digest
    changed.close()


def _rewrite(source: Path, target: Path, edit: Callable[[list[str]], None], **meta: object) -> None:
    header = gguf.read_header(source, arrays=["tokenizer.ggml.tokens", "tokenizer.ggml.merges"])
    raw, metadata = source.read_bytes(), dict(header.metadata)
    edit(metadata["tokenizer.ggml.tokens"])
    metadata.update({k.replace("__", "."): v for k, v in meta.items()})
    gguf.write(
        target,
        metadata,
        {
            name: np.frombuffer(raw, "<f4", int(np.prod(t.shape)), t.offset).reshape(t.shape)
            for name, t in header.tensors.items()
        },
    )


def test_the_end_token_ends_whatever_its_type_says(files: Files, tmp_path: Path) -> None:
    """A file that types its end as plain text would never stop and would print it."""
    kinds = [1] * files.model.n_vocab + [5] * 5
    path = tmp_path / "x.gguf"
    _rewrite(files.model.gguf, path, lambda _: None, tokenizer__ggml__token_type=kinds)
    engine = LlamaCppEngine(path, threads=1)
    assert 2 in engine.info.eos_ids
    assert engine.token_bytes(2) == b""
    engine.close()


def test_a_chat_template_that_is_no_text_is_none(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    _rewrite(files.model.gguf, path, lambda _: None, tokenizer__chat_template=7)
    engine = LlamaCppEngine(path, threads=1)
    assert engine.info.chat_template is None
    engine.close()


# --- the end ---


def test_after_closing_every_call_is_an_error_and_none_reads_freed_memory(
    make: Make, files: Files
) -> None:
    engine = make(max_contexts=1, sessions_per_context=1)
    session = _open(engine)
    session.feed(PROMPT)
    waiting = engine.session(max_tokens=8)
    handle = engine.load_adapter(files.adapters[0], key="a")
    engine.close()
    engine.close()
    calls: list[Callable[[], object]] = [
        lambda: waiting.result(WAIT_S),
        lambda: session.feed([40]),
        session.fork,
        lambda: engine.session().result(WAIT_S),
        lambda: engine.session([(handle, 1.0)]),
        lambda: engine.load_adapter(files.adapters[0], key="b"),
        lambda: engine.unload_adapter(handle),
        lambda: engine.tokenize("x"),
        lambda: engine.token_bytes(77),
    ]
    for call in calls:
        with pytest.raises(FloeError, match=r"engine (has stopped|is closed)|not loaded"):
            call()
    session.close()
    assert engine.failure is None
    assert engine.open_sessions == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_names_its_failure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    session = _open(engine)
    monkeypatch.setattr(engine._scheduler, "_plan", None)
    with pytest.raises(FloeError, match="the engine has stopped; restart the server"):
        session.feed(PROMPT)
    engine._scheduler._thread.join(WAIT_S)
    assert engine.failure == "TypeError"


def test_a_context_that_cannot_be_made_is_an_error_of_the_request(make: Make) -> None:
    engine = make(sessions_per_context=100_000)  # llama.cpp refuses so many sequences
    for _ in range(2):
        with pytest.raises(BadModel, match=r"cannot create a context: .*n_seq_max"):
            _open(engine)
    assert engine.failure is None


# --- many at once ---


def _in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)


@dataclass(kw_only=True)
class Walk:
    """A session fed at random; `seen` holds what must equal a fresh run."""

    session: Session
    route: int
    tokens: list[int]


Seen = list[tuple[int, list[int], FloatArray]]


def _walk(engine: LlamaCppEngine, routes: list[Route], seed: int, seen: Seen) -> None:
    """Open, feed, roll back, fork, cancel and close at random, as many users would at once.

    Nothing is held while waiting for a session: two walkers would wait for each other.
    """
    rng = random.Random(seed)
    walks: list[Walk] = []
    for _ in range(25):
        verb = rng.choice(["open", "feed", "feed", "rollback", "fork", "close", "cancel"])
        if verb == "open" or not walks:
            while walks:
                walks.pop().session.close()
            route = rng.randrange(len(routes))
            prompt = [*PROMPT[: rng.randint(1, 8)], rng.randint(40, 43)]
            opening = engine.session(routes[route], prompt=prompt, max_tokens=64)
            if rng.random() < 0.2 and opening.cancel():
                continue
            session = opening.result(WAIT_S)
            seen.append((route, prompt, session.feed(prompt)))
            walks.append(Walk(session=session, route=route, tokens=list(prompt)))
            continue
        walk = rng.choice(walks)
        if verb == "close":
            walks.remove(walk)
            walk.session.close()
        elif verb == "rollback":
            n = rng.randint(0, len(walk.tokens) - 1)
            walk.session.rollback(n)
            del walk.tokens[len(walk.tokens) - n :]
        elif verb == "fork" and len(walks) < 2:
            try:
                twin = walk.session.fork()
            except Busy:
                continue
            walks.append(Walk(session=twin, route=walk.route, tokens=list(walk.tokens)))
        elif len(walk.tokens) < 50:
            tokens = [rng.randint(40, 60) for _ in range(rng.randint(1, 8))]
            future = walk.session.submit(tokens)
            if verb == "cancel" and future.cancel():
                _rest(engine, walk.session)
                continue
            walk.tokens += tokens
            seen.append((walk.route, list(walk.tokens), future.result(WAIT_S)))
    for walk in walks:
        assert list(walk.session.tokens) == walk.tokens
        walk.session.close()


def test_many_threads_get_what_each_would_get_alone(make: Make, files: Files) -> None:
    engine = make(max_contexts=2, sessions_per_context=4, context_tokens=512, max_waiting=500)
    a, b = (engine.load_adapter(p, key=p.stem) for p in files.adapters)
    routes: list[Route] = [(), ((a, 1.0),), ((b, 0.5), (a, 0.5))]
    seen: list[Seen] = [[] for _ in range(6)]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            _walk(engine, routes, i, seen[i])
        except BaseException as error:  # shown by the assertion below
            failures.append(error)

    _in_threads([lambda i=i: work(i) for i in range(6)])
    assert failures == []
    _settle(engine)
    assert engine.open_sessions == 0
    assert engine.failure is None
    all_seen = [s for each in seen for s in each]
    assert len(all_seen) > 60
    for route, tokens, got in random.Random(0).sample(all_seen, 40):
        assert np.abs(got - _fresh(engine, tokens, *routes[route])).max() < ATOL


def test_two_streams_with_different_adapters_both_advance(
    make: Make, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While B's long prompt goes in, A's next token is at most one chunk away; both are right."""
    engine = make(context_tokens=512)
    a = engine.load_adapter(files.adapters[0], key="a")
    stream, prompt = _open(engine, (a, 1.0)), [40 + i % 20 for i in range(400)]
    stream.feed(PROMPT)
    other = _open(engine, n=512)
    turns: list[tuple[object, int]] = []
    decode = KvContext.decode

    def recorded(context: KvContext, pieces: Sequence[Piece]) -> list[FloatArray]:
        turns.append((context.key, sum(len(p.tokens) for p in pieces)))
        return decode(context, pieces)

    monkeypatch.setattr(KvContext, "decode", recorded)
    answers: list[Future[FloatArray]] = []
    enough = threading.Event()

    def step(_: Future[FloatArray] | None = None) -> None:
        if len(answers) == 9:
            enough.set()
            return
        answers.append(stream.submit([50]))
        answers[-1].add_done_callback(step)

    release = _hold(engine)
    step()
    long = other.submit(prompt)
    release.set()
    assert enough.wait(WAIT_S)
    wanted = long.result(WAIT_S)
    last = max(i for i, (key, _) in enumerate(turns) if key != ())
    chunks = [n for key, n in turns[:last] if key == ()]
    assert len(chunks) in (8, 9), "the streams did not take turns"
    assert max(chunks) <= CHUNK_SHARED_TOKENS
    stream.close()
    other.close()
    assert np.abs(wanted - _fresh(engine, prompt)).max() < ATOL * 5
    ours = answers[-1].result(WAIT_S)
    assert np.abs(ours - _fresh(engine, [*PROMPT, *[50] * 9], (a, 1.0))).max() < ATOL


def test_a_waiting_future_of_a_closed_engine_ends(make: Make) -> None:
    """Close while openings come in from another thread: each ends one way or the other."""
    engine = make()
    openings: list[Future[Session]] = []

    def ask() -> None:
        for _ in range(300):
            openings.append(engine.session(max_tokens=200))

    thread = threading.Thread(target=ask)
    thread.start()
    engine.close()
    thread.join(WAIT_S)
    for opening in openings:
        try:
            opening.result(WAIT_S)
        except (FloeError, CancelledError):
            continue
