"""The fake keeps the promises the real engines keep."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadAdapter, BadRequest, Busy, ContextTooLong, FloeError
from floe.testing.scripted_engine import ScriptedEngine, write_fake_adapter


def greedy(engine: ScriptedEngine, prompt: str, *, limit: int = 80, special: bool = True) -> str:
    session = engine.session().result()
    log_probs_V = session.feed(engine.tokenize(prompt, special=special))
    out = b""
    for _ in range(limit):
        token = int(log_probs_V.argmax())
        if token in engine.info.eos_ids:
            break
        out += engine.token_bytes(token)
        log_probs_V = session.feed([token])
    session.close()
    return out.decode()


@given(st.text(max_size=40))
@settings(max_examples=60)
def test_tokens_spell_the_text(text: str) -> None:
    engine = ScriptedEngine()
    ids = engine.tokenize(text)
    assert b"".join(map(engine.token_bytes, ids)) == text.encode()


def test_control_strings_are_tokens_only_when_asked() -> None:
    engine = ScriptedEngine()
    assert len(engine.tokenize("<|im_end|>", special=True)) == 1
    assert engine.token_bytes(engine.tokenize("<|im_end|>", special=True)[0]) == b""
    assert b"".join(map(engine.token_bytes, engine.tokenize("<|im_end|>"))) == b"<|im_end|>"


def test_every_row_is_a_distribution_and_rollback_and_fork_are_exact() -> None:
    engine = ScriptedEngine()
    session = engine.session().result()
    rows_TV = session.feed([65, 66, 67], every=True)
    assert np.allclose(np.exp(rows_TV.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    twin = session.fork()
    session.rollback(2)
    assert session.tokens == (65,)
    assert np.array_equal(session.feed([66]), rows_TV[1])
    assert np.array_equal(twin.feed([70]), engine.log_probs([65, 66, 67, 70]))
    with pytest.raises(BadRequest, match="cannot roll back 9 of 2 tokens"):
        session.rollback(9)
    session.close()
    session.close()
    twin.close()
    assert engine.open_sessions == 0 and engine.sessions_opened == 2
    with pytest.raises(FloeError, match="the session is closed"):
        session.feed([65])


def test_a_script_is_followed_in_chat_and_in_plain_text() -> None:
    engine = ScriptedEngine(answers={"capital": "It is Paris. 42!", "snow": " 雪が降る"})
    chat = "<|im_start|>user\nthe capital?<|im_end|>\n<|im_start|>assistant\n"
    assert greedy(engine, chat) == "It is Paris. 42!"
    assert greedy(engine, "On snow:") == " 雪が降る"


def test_adapters_change_the_distribution_and_may_bring_answers(tmp_path: Path) -> None:
    engine = ScriptedEngine(answers={"who": "base"})
    handle = engine.load_adapter(
        write_fake_adapter(tmp_path / "a.gguf", answers={"who": "adapter"}), key="k"
    )
    (tmp_path / "b.gguf").write_bytes(b"GGUF....")
    other = engine.load_adapter(tmp_path / "b.gguf", key="o")
    prompt = engine.tokenize("no script here")
    results = []
    for adapters in ([], [(handle, 1.0)], [(handle, 0.5)], [(other, 1.0)], [(handle, 0.0)]):
        session = engine.session(adapters).result()
        results.append(session.feed(prompt))
        session.close()
    assert np.array_equal(results[0], results[4])
    assert len({r.tobytes() for r in results}) == 4
    with engine_session(engine, [(handle, 1.0)]) as session:
        first = int(session.feed(engine.tokenize("who: ")).argmax())
        assert engine.token_bytes(first) == b"a"
        with pytest.raises(BadRequest, match="an open session still uses this adapter"):
            engine.unload_adapter(handle)
    engine.unload_adapter(handle)
    with pytest.raises(BadRequest, match="this adapter is not loaded"):
        engine.unload_adapter(handle)
    assert engine.adapters_loaded == 1


class engine_session:  # noqa: N801
    def __init__(self, engine: ScriptedEngine, adapters: list) -> None:
        self.session = engine.session(adapters).result()

    def __enter__(self):
        return self.session

    def __exit__(self, *_: object) -> None:
        self.session.close()


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    (tmp_path / "x.bin").write_bytes(b"PK\x03\x04")
    (tmp_path / "y.bin").write_text('{"magic": "other"}')
    for name in ("x.bin", "y.bin", "absent"):
        with pytest.raises(BadAdapter, match=f"{name} is not an adapter: write a GGUF file"):
            engine.load_adapter(tmp_path / name, key="k")


def test_a_closed_session_leaves_its_prefix_to_the_same_adapters_only(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    handle = engine.load_adapter(write_fake_adapter(tmp_path / "a.gguf"), key="k")
    prompt = engine.tokenize("a prompt of some length")
    first = engine.session(prompt=prompt).result()
    first.feed(prompt)
    assert first.cached_tokens == 0
    first.close()
    again = engine.session(prompt=prompt).result()
    fed = engine.tokens_fed
    assert np.array_equal(again.feed(prompt), engine.log_probs(prompt))
    assert again.cached_tokens == len(prompt) - 1 and engine.tokens_fed == fed + 1
    other = engine.session([(handle, 1.0)], prompt=prompt).result()
    other.feed(prompt)
    assert other.cached_tokens == 0


def test_trouble_can_be_ordered() -> None:
    engine = ScriptedEngine(context_tokens=16, max_sessions=1)
    with pytest.raises(ContextTooLong, match="does not fit the context of 16 tokens"):
        engine.session(prompt=[65] * 17).result()
    session = engine.session(max_tokens=4).result()
    with pytest.raises(Busy, match="all 1 sessions are taken"):
        engine.session().result()
    engine.fail_after(2)
    session.feed([65])
    session.feed([66])
    with pytest.raises(FloeError, match="the scripted engine failed"):
        session.feed([67])
    assert session.tokens[:2] == (65, 66)
    engine.heal()
    session.rollback(len(session.tokens) - 2)
    with pytest.raises(ContextTooLong, match="room for 4 tokens"):
        session.feed([65] * 3)
    with pytest.raises(BadRequest, match="nothing to feed"):
        session.feed([])
    session.close()
    engine.refuse_sessions()
    with pytest.raises(Busy, match="takes no more sessions"):
        engine.session().result()
    engine.close()
    with pytest.raises(FloeError, match="the engine is closed"):
        engine.session().result()


def test_paused_submits_wait_and_may_be_cancelled() -> None:
    engine = ScriptedEngine()
    one, two, three = (engine.session().result() for _ in range(3))
    engine.pause()
    futures = [s.submit([65]) for s in (one, two, three)]
    assert not any(f.done() for f in futures)
    with pytest.raises(BadRequest, match="one submit at a time"):
        one.submit([66])
    with pytest.raises(BadRequest, match="cannot roll back while a submit is pending"):
        one.rollback(0)
    assert futures[1].cancel()
    engine.resume()
    assert np.array_equal(futures[0].result(), futures[2].result())
    assert two.tokens == ()
    engine.pause()
    last = one.submit([66])
    engine.close()
    assert last.cancelled()


def test_threads_do_not_disturb_each_other() -> None:
    engine = ScriptedEngine()

    def run(first: int) -> bool:
        session = engine.session().result()
        same = all(
            np.array_equal(session.feed([first + i]), engine.log_probs([*session.tokens]))
            for i in range(20)
        )
        session.close()
        return same

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(60, 92)))
    assert engine.open_sessions == 0 and engine.tokens_fed == 32 * 20
