"""The conformance list on every engine, and parity between them in F32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from floe.adapters.formats import write_lora_gguf
from floe.adapters.peft import read_peft
from floe.engine.llamacpp import LlamaCppEngine
from floe.testing.engine_conformance import CHECKS, Subject
from floe.testing.scripted_engine import ScriptedEngine, write_fake_adapter
from floe.testing.tiny_model import TinyModel, make_tiny_adapter, make_tiny_model

CONTEXT_TOKENS = 512


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), padded_rows=7)


@pytest.fixture(scope="module")
def peft_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("peft")
    return [make_tiny_adapter(folder / str(i), seed=10 + i, rank=3 + i) for i in range(2)]


@pytest.fixture(scope="module")
def llama(tiny: TinyModel, peft_folders: list[Path]) -> Iterator[Subject]:
    engine = LlamaCppEngine(tiny.gguf, threads=1, context_tokens=CONTEXT_TOKENS, kv_f32=True)
    handles = []
    for i, folder in enumerate(peft_folders):
        path = folder / "adapter.gguf"
        write_lora_gguf(
            path, read_peft(folder, engine.info), architecture="llama", dtype=np.float32
        )
        handles.append(engine.load_adapter(path, key=f"adapter-{i}"))
    yield Subject(engine=engine, adapters=(handles[0], handles[1]), atol=2e-4)
    engine.close()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("fake")
    engine = ScriptedEngine(context_tokens=CONTEXT_TOKENS)
    a, b = (
        engine.load_adapter(write_fake_adapter(folder / f"{k}.json"), key=k) for k in ("a", "b")
    )
    return Subject(engine=engine, adapters=(a, b), atol=1e-5)


@pytest.fixture(scope="module")
def torch_engine(tiny: TinyModel, peft_folders: list[Path]) -> Iterator[Subject]:
    pytest.importorskip("torch", reason="the torch engine is an extra: pip install 'floe[train]'")
    from floe.engine.torch_engine import TorchEngine

    engine = TorchEngine(folder=tiny.folder, context_tokens=CONTEXT_TOKENS)
    a, b = (engine.load_adapter(f, key=f"adapter-{i}") for i, f in enumerate(peft_folders))
    yield Subject(engine=engine, adapters=(a, b), atol=2e-4)
    engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ["llama", "scripted", "torch_engine"])
def test_conformance(
    name: str, check: Callable[[Subject], None], request: pytest.FixtureRequest
) -> None:
    check(request.getfixturevalue(name))


def _log_probs(subject: Subject, tokens: list[int], scales: tuple[float, float]) -> np.ndarray:
    pairs = [(a, s) for a, s in zip(subject.adapters, scales, strict=True) if s]
    session = subject.engine.session(pairs, max_tokens=64).result()
    out = session.feed(tokens, every=True)
    session.close()
    return out


@pytest.mark.parametrize("scales", [(0.0, 0.0), (1.0, 0.0), (0.0, 0.5), (0.7, 0.3)])
def test_llama_cpp_equals_torch(
    llama: Subject, torch_engine: Subject, scales: tuple[float, float]
) -> None:
    """Same weights, same adapters, F32: the same log-probabilities; mixes against PEFT's cat."""
    tokens = llama.engine.tokenize(llama.text)
    assert tokens == torch_engine.engine.tokenize(llama.text)
    ours, reference = (_log_probs(s, tokens, scales) for s in (llama, torch_engine))
    assert ours.shape == reference.shape
    assert np.abs(ours - reference).max() < 2e-3


def test_greedy_tokens_equal_torch(llama: Subject, torch_engine: Subject) -> None:
    """32 greedy tokens of both engines are the same."""
    texts = []
    for subject in (llama, torch_engine):
        session = subject.engine.session((), max_tokens=64).result()
        tokens = list(subject.engine.tokenize(subject.text))
        log_probs_V = session.feed(tokens)
        for _ in range(32):
            tokens.append(int(log_probs_V.argmax()))
            log_probs_V = session.feed([tokens[-1]])
        session.close()
        texts.append(tokens)
    assert texts[0] == texts[1]
