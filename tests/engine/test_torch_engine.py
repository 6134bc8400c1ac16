"""The torch engine against PEFT itself and against its own slow twin: a fresh, plain forward pass.

Legend: V the tokenizer's real ids, T tokens, R rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="an extra: pip install 'floe[train]'")
import peft  # noqa: E402
import transformers  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from floe.core import gguf  # noqa: E402
from floe.core.errors import BadAdapter, BadModel, BadRequest, ContextTooLong, FloeError  # noqa: E402
from floe.engine.base import AdapterHandle, FloatArray  # noqa: E402
from floe.engine.torch_engine import TorchEngine, folder_from_gguf  # noqa: E402
from floe.testing.tiny_model import TinyModel, make_tiny_adapter, make_tiny_model  # noqa: E402

TEXT = "the cat and the dog in the rain"
ATOL = 1e-4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3, padded_rows=5)


@pytest.fixture(scope="module")
def engine(tiny: TinyModel) -> Iterator[TorchEngine]:
    engine = TorchEngine(folder=tiny.folder, names=frozenset({"Tiny-Llama"}))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        make_tiny_adapter(folder / "a", seed=1, rank=4, alpha=8),
        make_tiny_adapter(folder / "b", seed=2, rank=3, alpha=5, use_rslora=True),
    ]


@pytest.fixture(scope="module")
def pair(engine: TorchEngine, folders: list[Path]) -> list[AdapterHandle]:
    return [engine.load_adapter(f, key=f.name) for f in folders]


def run(
    engine: TorchEngine,
    tokens: Sequence[int],
    *adapters: tuple[AdapterHandle, float],
) -> FloatArray:
    session = engine.session(adapters).result()
    out = session.feed(tokens, every=True)
    session.close()
    return out


def plain(model: Any, tokens: Sequence[int], n_vocab: int) -> FloatArray:
    """The twin: one forward pass without a cache, (T, V)."""
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0, :, :n_vocab]
        return torch.log_softmax(logits, dim=-1).numpy()


def base(tiny: TinyModel) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def peft_model(tiny: TinyModel, folders: list[Path]) -> Any:
    model = peft.PeftModel.from_pretrained(base(tiny), str(folders[0]), adapter_name="a")
    model.load_adapter(str(folders[1]), adapter_name="b")
    return model.eval()


def test_info_describes_the_model(engine: TorchEngine, tiny: TinyModel) -> None:
    info = engine.info
    assert (info.architecture, info.n_layers, info.width) == ("llama", 2, 64)
    assert (info.n_heads, info.n_kv_heads, info.context_tokens) == (4, 2, 512)
    assert info.n_vocab == tiny.n_vocab
    assert info.eos_ids == {0, 2}
    assert info.names == {"tiny-llama"}
    assert info.linears["blk.0.attn_k"] == (32, 64)
    assert info.linears["blk.1.ffn_down"] == (64, 128)
    assert len(info.linears) == 14
    assert info.chat_template is not None
    assert len(info.digest) == len(info.tokenizer_digest) == 64


def test_b38_padded_rows_are_no_tokens(engine: TorchEngine, tiny: TinyModel) -> None:
    log_probs_TV = run(engine, engine.tokenize(TEXT))
    assert log_probs_TV.shape == (len(engine.tokenize(TEXT)), tiny.n_vocab)
    assert np.allclose(np.exp(log_probs_TV).sum(axis=1), 1, atol=1e-5)


def test_control_tokens_are_recognised_only_when_asked(engine: TorchEngine) -> None:
    text = "<|im_start|>in<|im_end|>"
    assert engine.tokenize(text, special=True)[0] == 1
    ordinary = engine.tokenize(text)
    assert not {0, 1, 2} & set(ordinary)
    assert b"".join(engine.token_bytes(t) for t in ordinary) == text.encode()


@given(st.text(max_size=40))
@settings(max_examples=50, deadline=None)
def test_tokens_carry_every_text(engine: TorchEngine, text: str) -> None:
    data = b"".join(engine.token_bytes(t) for t in engine.tokenize(text))
    assert data == text.encode("utf-8", "replace")


def test_without_adapters_it_is_the_plain_model(engine: TorchEngine, tiny: TinyModel) -> None:
    tokens = engine.tokenize(TEXT)
    assert np.abs(run(engine, tokens) - plain(base(tiny), tokens, tiny.n_vocab)).max() < ATOL


@pytest.mark.parametrize("index", [0, 1])
def test_one_adapter_equals_peft(
    engine: TorchEngine, pair: list[AdapterHandle], peft_model: Any, index: int
) -> None:
    tokens = engine.tokenize(TEXT)
    peft_model.set_adapter("ab"[index])
    wanted = plain(peft_model, tokens, engine.info.n_vocab)
    assert np.abs(wanted - run(engine, tokens)).max() > 0.1
    assert np.abs(wanted - run(engine, tokens, (pair[index], 1.0))).max() < ATOL


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1.0, 1.0), (0.25, 1.5)])
def test_a_mix_equals_peft_cat(
    engine: TorchEngine,
    pair: list[AdapterHandle],
    peft_model: Any,
    weights: tuple[float, float],
) -> None:
    tokens = engine.tokenize(TEXT)
    name = f"cat{weights}".replace(".", "_")
    peft_model.add_weighted_adapter(["a", "b"], list(weights), name, combination_type="cat")
    peft_model.set_adapter(name)
    wanted = plain(peft_model, tokens, engine.info.n_vocab)
    ours = run(engine, tokens, *zip(pair, weights, strict=True))
    assert np.abs(ours - wanted).max() < ATOL


def test_patterns_of_rank_and_alpha_are_honoured(
    engine: TorchEngine, tiny: TinyModel, tmp_path: Path
) -> None:
    """rank_pattern and alpha_pattern give layers their own rank and scaling."""
    config = peft.LoraConfig(
        r=2,
        lora_alpha=6,
        rank_pattern={"q_proj": 5},
        alpha_pattern={"v_proj": 1},
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(base(tiny), config)
    model.save_pretrained(tmp_path)
    rename_base(tmp_path, "tiny-llama")
    tokens = engine.tokenize(TEXT)
    ours = run(engine, tokens, (engine.load_adapter(tmp_path, key="patterns"), 1.0))
    wanted = plain(model.eval(), tokens, engine.info.n_vocab)
    assert np.abs(ours - wanted).max() < ATOL


def test_a_gguf_equals_its_peft_folder(
    engine: TorchEngine, folders: list[Path], pair: list[AdapterHandle], tmp_path: Path
) -> None:
    path = write_gguf(folders[0], tmp_path / "adapter.gguf", alpha=8.0)
    tokens = engine.tokenize(TEXT)
    wanted = run(engine, tokens, (pair[0], 1.0))
    for where in (path, tmp_path):
        handle = engine.load_adapter(where, key="gguf")
        assert np.abs(run(engine, tokens, (handle, 1.0)) - wanted).max() < ATOL


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_walk_equals_a_fresh_run(
    engine: TorchEngine, pair: list[AdapterHandle], data: st.DataObject
) -> None:
    """Feeds, rollbacks and forks in any order: the twin feeds what is left in one go."""
    weights = data.draw(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2))
    mix = list(zip(pair, weights, strict=True))
    ids = st.integers(0, engine.info.n_vocab - 1)
    session = engine.session(mix, max_tokens=64).result()
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            branch = session.fork()
            session.feed([1])
            session.close()
            session = branch
        session.rollback(data.draw(st.integers(0, len(session.tokens))))
        last_V = session.feed(data.draw(st.lists(ids, min_size=1, max_size=6)))
    assert np.abs(last_V - run(engine, session.tokens, *mix)[-1]).max() < ATOL
    session.close()


def test_the_array_is_the_callers_own(engine: TorchEngine) -> None:
    session = engine.session().result()
    first = session.feed(engine.tokenize("the"))
    kept = first.copy()
    session.feed(engine.tokenize("in"))
    assert np.array_equal(first, kept)
    assert first.flags.writeable
    session.close()


def test_unload_waits_for_sessions(engine: TorchEngine, folders: list[Path]) -> None:
    handle = engine.load_adapter(folders[0], key="used")
    session = engine.session([(handle, 1.0)]).result()
    with pytest.raises(RuntimeError, match="an open session still uses this adapter"):
        engine.unload_adapter(handle)
    session.close()
    engine.unload_adapter(handle)


def test_calls_that_cannot_be(engine: TorchEngine) -> None:
    session = engine.session(max_tokens=4).result()
    session.feed([5, 6])
    for tokens, kind, message in (
        ([], BadRequest, "nothing to feed"),
        ([10_000], BadRequest, "outside the vocabulary"),
        ([5, 6, 7], ContextTooLong, "room for 4 tokens"),
    ):
        with pytest.raises(kind, match=message):
            session.submit(tokens).result()
    with pytest.raises(BadRequest, match="cannot roll back 3 of 2 tokens"):
        session.rollback(3)
    assert list(session.tokens) == [5, 6]
    assert session.cached_tokens == 0
    session.close()
    session.close()
    for call in (lambda: session.feed([5]), session.fork, lambda: session.rollback(0)):
        with pytest.raises(FloeError, match="the session is closed"):
            call()
    with pytest.raises(ContextTooLong, match="does not fit the context of 512 tokens"):
        engine.session(max_tokens=513).result()


def test_a_failing_step_leaves_the_session_as_it_was(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = engine.session().result()
    tokens = engine.tokenize(TEXT)
    session.feed(tokens[:-1])
    layer = engine._model.model.layers[1]

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", fail)
        with pytest.raises(FloeError, match="the model failed on a step"):
            session.feed(tokens[-1:])
    assert np.abs(session.feed(tokens[-1:]) - run(engine, tokens)[-1]).max() < ATOL
    session.close()


def test_a_closed_engine_says_so(tiny: TinyModel, folders: list[Path]) -> None:
    engine = TorchEngine(folder=tiny.folder, context_tokens=100)
    assert engine.info.context_tokens == 100
    session = engine.session().result()
    engine.close()
    for call in (
        lambda: session.feed([5]),
        lambda: engine.session().result(),
        lambda: engine.load_adapter(folders[0], key="a"),
    ):
        with pytest.raises(FloeError, match="the engine is closed"):
            call()


def test_an_adapter_of_another_engine_is_refused(engine: TorchEngine) -> None:
    class Stranger:
        key = "x"

    with pytest.raises(BadAdapter, match="loaded by another engine"):
        engine.session([(Stranger(), 1.0)]).result()


def rename_base(folder: Path, name: str) -> None:
    change_config(folder, base_model_name_or_path=name)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, **changes: Any) -> None:
    """Each change maps a suffix of tensor names to a function of the array; None drops it."""
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    for key in list(tensors):
        for suffix, change in changes.items():
            if key.endswith(suffix.replace("__", ".")):
                tensors[key] = np.ascontiguousarray(change(tensors[key]))
    save_file(tensors, path, metadata={"format": "pt"})


def dora(folder: Path) -> None:
    change_config(folder, use_dora=True)


def whole_modules(folder: Path) -> None:
    change_config(folder, modules_to_save=["lm_head"])


def another_kind(folder: Path) -> None:
    change_config(folder, peft_type="IA3")


def another_base(folder: Path) -> None:
    rename_base(folder, "other/model")


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def narrow(folder: Path) -> None:
    change_weights(folder, q_proj__lora_A__weight=lambda a: a[:, :32])


def another_rank(folder: Path) -> None:
    change_config(folder, r=6)


def fewer_targets(folder: Path) -> None:
    change_config(folder, target_modules=["q_proj"])


def stray_tensor(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({**load_file(path), "lm_head.weight": np.ones((2, 2), np.float32)}, path)


def no_tensors(folder: Path) -> None:
    save_file({}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (dora, "is a DoRA"),
        (whole_modules, "modules_to_save"),
        (another_kind, "is no LoRA"),
        (another_base, "trained for another base model"),
        (pickled, "pickles are never loaded"),
        (narrow, r"has shape \[4, 32\]; the layer is \(64, 64\)"),
        (another_rank, "PEFT refuses it"),
        (fewer_targets, "name different layers"),
        (stray_tensor, "holds lm_head.weight, which is no LoRA matrix"),
        (no_tensors, "is empty"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a37_an_adapter_is_applied_or_refused(
    engine: TorchEngine,
    folders: list[Path],
    pair: list[AdapterHandle],
    tmp_path: Path,
    spoil: Any,
    message: str,
) -> None:
    """A refusal names the reason and leaves the engine as it was."""
    tokens = engine.tokenize(TEXT)
    before = run(engine, tokens, (pair[1], 1.0))
    folder = tmp_path / "bad"
    shutil.copytree(folders[0], folder)
    spoil(folder)
    with pytest.raises(BadAdapter, match=message):
        engine.load_adapter(folder, key="bad")
    assert np.array_equal(run(engine, tokens, (pair[1], 1.0)), before)


def write_gguf(
    folder: Path, path: Path, *, alpha: float, architecture: str = "llama", drop: int = 0
) -> Path:
    """The PEFT folder as llama.cpp's converter writes it, by the book."""
    kinds = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {}
    for key, array in load_file(folder / "adapter_model.safetensors").items():
        layer, module = key.split("layers.")[1].split(".lora_")[0].split(".", 1)
        side = "a" if "lora_A" in key else "b"
        heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(module)
        if side == "b" and heads:
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, -1)
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        tensors[f"blk.{layer}.{kinds[module]}.weight.lora_{side}"] = array
    for name in sorted(tensors)[:drop]:
        del tensors[name]
    metadata = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    gguf.write(path, metadata, tensors)
    return path


def test_a_bad_gguf_adapter_is_refused(
    engine: TorchEngine, folders: list[Path], tmp_path: Path
) -> None:
    missing = tmp_path / "missing.gguf"
    with pytest.raises(BadAdapter, match="cannot read"):
        engine.load_adapter(missing, key="x")
    other = write_gguf(folders[0], tmp_path / "other.gguf", alpha=8.0, architecture="qwen2")
    with pytest.raises(BadAdapter, match="another architecture than llama"):
        engine.load_adapter(other, key="x")
    half = write_gguf(folders[0], tmp_path / "half.gguf", alpha=8.0, drop=1)
    with pytest.raises(BadAdapter, match="match no layer of the model"):
        engine.load_adapter(half, key="x")
    wide = tmp_path / "wide"
    shutil.copytree(folders[0], wide)
    change_weights(wide, v_proj__lora_B__weight=lambda b: b[:16])
    path = write_gguf(wide, tmp_path / "wide.gguf", alpha=8.0)
    with pytest.raises(BadAdapter, match=r"attn_v does not have the shape"):
        engine.load_adapter(path, key="x")


def test_a_bad_folder_is_refused(tiny: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="has no tokenizer file"):
        TorchEngine(folder=tmp_path)
    folder = tmp_path / "copy"
    shutil.copytree(tiny.folder, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadModel, match="cannot load a model"):
        TorchEngine(folder=folder)
    shutil.copytree(tiny.folder, folder, dirs_exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["decoder"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadModel, match="not a byte-level tokenizer"):
        TorchEngine(folder=folder)


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    """More ids than rows: an id would be fed that the model does not have (bug-log B37)."""
    folder = make_tiny_model(tmp_path).folder
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    extra = {**tokenizer["added_tokens"][0], "id": 268, "content": "<|one_more|>"}
    tokenizer["added_tokens"].append(extra)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadModel, match="belongs to another model"):
        TorchEngine(folder=folder)


def test_a_folder_made_from_a_gguf_is_the_same_model(
    engine: TorchEngine, tiny: TinyModel, tmp_path: Path
) -> None:
    folder = folder_from_gguf(tiny.gguf, tmp_path / "made")
    assert folder_from_gguf(tmp_path / "not read again", folder) == folder
    twin = TorchEngine(folder=folder)
    tokens = engine.tokenize(TEXT)
    assert twin.tokenize(TEXT) == tokens
    assert np.abs(run(twin, tokens) - run(engine, tokens)).max() < ATOL
    assert twin.info.tokenizer_digest == engine.info.tokenizer_digest
    twin.close()


def test_a_file_that_is_no_gguf_makes_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(BadModel, match="is not a GGUF file"):
        folder_from_gguf(path, tmp_path / "made")
    gguf.write(path, {"general.architecture": "unheard-of"}, {"x": np.ones(4, np.float32)})
    with pytest.raises(BadModel, match="is its architecture known"):
        folder_from_gguf(path, tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
