"""The served adapter against a merged model and against PEFT, on llama.cpp."""

from __future__ import annotations

import builtins
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest
import tiny_llama
from numpy.typing import NDArray

from floe.adapters.lora import LoraPair, LoraTensors
from floe.adapters.merge import write_f32
from floe.adapters.store import AdapterStore
from floe.adapters.verify import Verification, compare, verify
from floe.core import gguf
from floe.core.errors import BadAdapter, BadModel, FloeError, Missing
from floe.engine.llamacpp import LlamaCppEngine

pytest.importorskip("gguf", reason="needs the extra `convert`")
ALL = tuple(toys.SHAPES)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, slm_gguf: Path) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny-toy.gguf"
    return tiny_llama.write(path, slm_gguf, tiny_llama.random_weights())


@pytest.fixture
def store(tmp_path: Path, base: Path) -> AdapterStore:
    engine = LlamaCppEngine(base, digest="tiny", names=["tiny-toy"], threads=1)
    info = engine.info
    engine.close()
    return AdapterStore(tmp_path / "store", info)


def run_verify(store: AdapterStore, base: Path, tmp_path: Path, **changes: Any) -> Verification:
    stored = store.get("a")
    options = {"run": tiny_llama.run, "lora": store.tensors(stored), **changes}
    return verify(
        stored, options["lora"], base, options["run"], model_digest="tiny",
        cache_folder=tmp_path / "verify", prompts=("The capital of France is", "def add(a, b):"),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a17_the_served_adapter_equals_the_merged_model(
    store: AdapterStore, base: Path, tmp_path: Path, kind: str
) -> None:
    store.add(toys.folder(tmp_path / "a", toys.tensors(modules=ALL)))
    model = base if kind == "F32" else tiny_llama.quantized(base, tmp_path / "q8.gguf")
    report = run_verify(store, model, tmp_path)
    assert report.is_ok, report
    assert report.max_difference < 0.05 < 0.5 < report.effect
    assert 0 <= report.mean_kl < 1e-3
    assert (report.modules, report.name, report.reason) == (14, "a", "")
    assert [p.name for p in (tmp_path / "verify").iterdir()] == ["tiny-F32.gguf"]


def test_a17_an_adapter_that_is_not_applied_or_differs_is_found(
    store: AdapterStore, base: Path, tmp_path: Path
) -> None:
    store.add(toys.folder(tmp_path / "a", toys.tensors(modules=ALL)))

    def deaf(model: Path, adapter: Path | None, prompts: Sequence[str]) -> Any:
        return tiny_llama.run(model, None, prompts)

    ignored = run_verify(store, base, tmp_path, run=deaf)
    assert not ignored.is_ok
    assert ignored.max_difference == ignored.effect
    assert "away from the merged reference" in ignored.reason
    lora = store.tensors(store.get("a"))
    pairs = {n: LoraPair(a_RI=p.a_RI, b_OR=p.b_OR * 2) for n, p in lora.pairs.items()}
    wrong = LoraTensors(architecture="llama", pairs=pairs)
    assert not run_verify(store, base, tmp_path, lora=wrong).is_ok


def test_a17_the_served_adapter_equals_peft(
    base: Path, store: AdapterStore, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    pytest.importorskip("peft", reason="needs the extra `train`")
    from peft import PeftModel
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tiny_llama.VOCAB, hidden_size=toys.WIDTH, intermediate_size=toys.FFN,
            num_hidden_layers=toys.LAYERS, num_attention_heads=toys.HEADS,
            num_key_value_heads=toys.KV_HEADS, rms_norm_eps=1e-6,
        )
    )  # fmt: skip
    weights = {k: torch.from_numpy(v) for k, v in tiny_llama.random_weights().items()}
    model.load_state_dict(weights)
    folder = toys.folder(
        tmp_path / "a", toys.tensors(modules=ALL), lora_alpha=2, use_rslora=True,
        alpha_pattern={"q_proj": 3},
        target_modules=[m.split(".")[1] for m in ALL],
    )  # fmt: skip
    prompt = "The capital of France is"
    engine = LlamaCppEngine(base, digest="tiny", threads=1, context_tokens=128, kv_f32=True)
    ids = torch.tensor([engine.tokenize(prompt)])
    engine.close()
    with torch.inference_mode():
        plain = torch.log_softmax(model(ids).logits[0], -1).numpy()
        adapted_model = PeftModel.from_pretrained(model, str(folder)).eval()
        adapted = torch.log_softmax(adapted_model(ids).logits[0], -1).numpy()
    stored = store.add(folder)
    (ours_plain,) = tiny_llama.run(base, None, [prompt])
    (ours,) = tiny_llama.run(base, stored.gguf, [prompt])
    assert np.abs(ours_plain - plain).max() < 0.02
    assert np.abs(adapted - plain).max() > 0.5
    assert np.abs(ours - adapted).max() < 0.02


# --- the verdict alone


def log_probs(*logits: float) -> list[NDArray[np.float32]]:
    values = np.asarray([logits], np.float32)
    return [values - np.log(np.exp(values).sum())]


def test_the_verdict_on_arrays() -> None:
    plain, far, near = log_probs(0, 0), log_probs(0, 1), log_probs(0, 1.01)
    good = compare(plain, near, far, name="a", modules=1)
    p, q = np.exp(far[0][0]), np.exp(near[0][0])
    assert good.is_ok
    assert good.mean_kl == pytest.approx(float((p * np.log(p / q)).sum()), abs=1e-6)
    assert good.positions == 1
    silent = compare(plain, plain, log_probs(0, 0.01), name="a", modules=1)
    assert silent.reason == "the served adapter cannot be told from one that is not applied"
    assert not compare(plain, far, plain, name="a", modules=1).is_ok


def test_runs_that_cannot_be_compared() -> None:
    one = log_probs(0, 0)
    with pytest.raises(FloeError, match="the run gave no log-probabilities"):
        compare([], one, one, name="a", modules=1)
    with pytest.raises(FloeError, match="not finite"):
        compare(one, [np.full((1, 2), np.nan, np.float32)], one, name="a", modules=1)
    with pytest.raises(FloeError, match="different numbers of positions"):
        compare(one, one * 2, one, name="a", modules=1)


# --- the merged model


def test_merging_adds_the_product_and_copies_the_rest(base: Path, tmp_path: Path) -> None:
    lora = toys.lora(names=("blk.1.attn_k",))
    write_f32(base, tmp_path / "m.gguf", merged=lora)
    old, new = gguf.read_header(base), gguf.read_header(tmp_path / "m.gguf")
    assert gguf.raw_values(base, old) == gguf.raw_values(tmp_path / "m.gguf", new)
    a, b = base.read_bytes(), (tmp_path / "m.gguf").read_bytes()
    for name, info in old.tensors.items():
        change = gguf.tensor_array(b, new.tensors[name]) - gguf.tensor_array(a, info)
        if name == "blk.1.attn_k.weight":
            np.testing.assert_allclose(change, toys.delta(lora.pairs["blk.1.attn_k"]), atol=1e-6)
        else:
            assert not change.any()


def test_merging_refuses_what_it_cannot_do(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.gguf"
    lora = LoraTensors(architecture="llama", pairs={"x": toys.lora().pairs["blk.0.attn_q"]})
    with pytest.raises(BadAdapter, match=r"has no tensor x\.weight"):
        write_f32(base, target, merged=lora)
    odd = tmp_path / "odd.gguf"
    raw = gguf.RawTensor(shape=(1,), type=27, load=lambda: bytes(8))
    gguf.write(odd, {"general.architecture": "llama"}, {"w": raw})
    with pytest.raises(BadModel, match="'w' of ggml type 27 cannot be dequantized here"):
        write_f32(odd, target)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
    with pytest.raises(FloeError, match=r"has 5 bytes free; .* are needed. Make room"):
        write_f32(base, target)
    real = builtins.__import__

    def without_gguf(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gguf" or name.startswith("gguf."):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_gguf)
    with pytest.raises(Missing, match=r"pip install 'floe\[convert\]'"):
        write_f32(base, target)
    assert not target.exists()
