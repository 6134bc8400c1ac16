"""SmolLM2 and the cloud stand-in through the serving engine: what a user would notice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floe.assemble import chat_format
from floe.core.request import Message, Request
from floe.engine.llamacpp import LlamaCppEngine


@pytest.fixture(scope="module")
def smol(slm_gguf: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(slm_gguf, digest="0" * 64, threads=1, context_tokens=512)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def qwen(cloud_gguf: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(cloud_gguf, digest="1" * 64, threads=1, context_tokens=256)
    yield engine
    engine.close()


def _greedy(engine: LlamaCppEngine, prompt: list[int], n: int) -> tuple[list[int], int]:
    """Drawn ids up to an end, and how many prompt tokens came from the cache."""
    session = engine.session(prompt=prompt, max_tokens=len(prompt) + n).result()
    log_probs_V, drawn = session.feed(prompt), []
    for _ in range(n):
        drawn.append(int(log_probs_V.argmax()))
        if drawn[-1] in engine.info.eos_ids:
            break
        log_probs_V = session.feed(drawn[-1:])
    session.close()
    return drawn, session.cached_tokens


def _text(engine: LlamaCppEngine, tokens: list[int]) -> str:
    return b"".join(map(engine.token_bytes, tokens)).decode("utf-8", "replace")


def test_the_capital_of_france(smol: LlamaCppEngine) -> None:
    drawn, _ = _greedy(smol, smol.tokenize("The capital of France is"), 4)
    assert "Paris" in _text(smol, drawn)


def test_a_chat_answers_and_ends_by_itself(smol: LlamaCppEngine) -> None:
    """Rendered by the model's own template; the end is an end id, which stands for no text."""
    turn = Message(role="user", content="What is the capital of France? Answer in one word.")
    drawn, _ = _greedy(smol, chat_format(smol).encode(Request(id="r", messages=(turn,))), 48)
    assert "Paris" in _text(smol, drawn)
    assert drawn[-1] in smol.info.eos_ids
    assert smol.token_bytes(drawn[-1]) == b""


def test_a38_the_same_request_twice_gives_the_same_answer(smol: LlamaCppEngine) -> None:
    """The second time all but the last prompt token come from the cache."""
    prompt = smol.tokenize("Once upon a time there was a small robot who")
    first, _ = _greedy(smol, prompt, 6)
    second, cached = _greedy(smol, prompt, 6)
    third, _ = _greedy(smol, prompt, 6)
    assert cached == len(prompt) - 1
    assert second == third  # same route through the cache: not one bit of difference
    assert first[0] == second[0]


def test_identity_and_shape_of_the_shipped_model(smol: LlamaCppEngine) -> None:
    info = smol.info
    assert (info.architecture, info.n_layers, info.width) == ("llama", 30, 576)
    assert (info.n_heads, info.n_kv_heads, info.n_vocab) == (9, 3, 49152)
    assert {smol.tokenize("<|im_end|>", special=True)[0]} <= info.eos_ids
    assert info.linears["blk.29.ffn_down"] == (576, 1536)


def test_b37_padded_rows_of_the_stand_in_are_no_ids(qwen: LlamaCppEngine) -> None:
    """Qwen's matrix is wider than its tokenizer; a feed gives the real ids only."""
    assert qwen.info.n_vocab < qwen.vocabulary.n_rows == 151_936
    session = qwen.session(max_tokens=8).result()
    log_probs_V = session.feed(qwen.tokenize("def add(a, b):"))
    session.close()
    assert log_probs_V.shape == (qwen.info.n_vocab,)
    assert abs(np.exp(log_probs_V.astype(np.float64)).sum() - 1) < 1e-3
    assert qwen.token_bytes(qwen.info.n_vocab - 1) != b"" or (
        qwen.info.n_vocab - 1 in qwen.vocabulary.control_ids
    )


def test_b37_other_tokenizers_have_other_digests(
    smol: LlamaCppEngine, qwen: LlamaCppEngine
) -> None:
    assert smol.info.tokenizer_digest != qwen.info.tokenizer_digest


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)


@cache
def _known_bytes(engine: LlamaCppEngine) -> frozenset[int]:
    """Bytes that have a token of their own; SmolLM2 lacks a few control characters' and others."""
    pieces = (engine.token_bytes(t) for t in range(engine.info.n_vocab))
    return frozenset(piece[0] for piece in pieces if len(piece) == 1)


@pytest.mark.parametrize("name", ["smol", "qwen"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXT)
def test_ids_stand_for_the_bytes_of_any_text(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    """Not one byte added, none lost that the model knows; written control tokens stay text."""
    engine: LlamaCppEngine = request.getfixturevalue(name)
    for written in (text, f"{text}<|im_end|>{text}"):
        ids = engine.tokenize(written)
        wanted = bytes(b for b in written.encode() if b in _known_bytes(engine))
        assert b"".join(map(engine.token_bytes, ids)) == wanted
        assert engine.vocabulary.control_ids.isdisjoint(ids)


def test_the_bytes_of_ordinary_text_are_all_known(
    smol: LlamaCppEngine, qwen: LlamaCppEngine
) -> None:
    never = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))  # bytes that no UTF-8 text holds
    assert frozenset(range(256)) - never <= _known_bytes(qwen)
    common = frozenset((9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC3, 0xF1)))
    assert common - _known_bytes(smol) <= frozenset((0xDE, 0xDF))


def test_lone_surrogates_and_long_runs_are_tokenized(smol: LlamaCppEngine) -> None:
    assert _text(smol, smol.tokenize("a\ud800b")) == "a?b"
    for text in ("a" * 50_000, " " * 50_000, "\n" * 20_000, "\0" * 100, "🙂" * 10_000):
        assert _text(smol, smol.tokenize(text)) == text
