"""Files that ggml would abort on, or apply silently wrong, are refused before they reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core import gguf
from floe.core.errors import BadAdapter, BadModel
from floe.engine import gguf_checks
from floe.engine.gguf_checks import check_adapter, checked_model, linear_shapes
from floe.testing.tiny_model import WIDTH, make_tiny_model

SRC = Path(gguf_checks.__file__).parents[2]
Metadata = dict[str, Any]
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny")).gguf


@pytest.fixture(scope="module")
def parts(tiny: Path) -> tuple[Metadata, Tensors]:
    arrays = ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"]
    header = gguf.read_header(tiny, arrays=arrays)
    raw = tiny.read_bytes()
    tensors = {
        name: np.frombuffer(raw, "<f4", int(np.prod(t.shape)), t.offset).reshape(t.shape)
        for name, t in header.tensors.items()
    }
    return header.metadata, tensors


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, parts: tuple[Metadata, Tensors]) -> Write:
    """Write the tiny model with other metadata (None: without the key) and tensors."""

    def write(*, tensors: Tensors | None = None, arch: str = "llama", **changes: Any) -> Path:
        metadata = {k.replace("llama.", f"{arch}.", 1): v for k, v in parts[0].items()}
        metadata["general.architecture"] = arch
        for key, value in changes.items():
            metadata[key.replace("__", ".")] = value
        path = tmp_path / "model.gguf"
        kept = {k: v for k, v in metadata.items() if v is not None}
        gguf.write(path, kept, {**parts[1], **(tensors or {})})
        return path

    return write


def _refused(path: Path, *words: str) -> None:
    with pytest.raises(BadModel) as caught:
        checked_model(path)
    assert str(path) in caught.value.message or "layers" in caught.value.message
    for word in words:
        assert word in caught.value.message


def _i32(array: Any) -> gguf.RawTensor:
    return gguf.RawTensor(shape=array.shape, type=26, load=lambda: array.astype(np.int32))


# --- models ---


def test_a_good_model_passes(tiny: Path, write: Write) -> None:
    header = checked_model(tiny)
    assert linear_shapes(header)["blk.1.ffn_down"] == (WIDTH, 128)
    assert "blk.0.attn_norm" not in linear_shapes(header)
    for arch in ("qwen2", "qwen3", "deci"):
        checked_model(write(arch=arch))
    checked_model(write(arch="deci", llama__x=1, deci__attention__head_count=[4, 4]))


def test_no_file_and_no_gguf(tmp_path: Path, tiny: Path) -> None:
    _refused(tmp_path / "none.gguf", "no model file at", "floe pull NAME")
    _refused(tmp_path, "no model file at")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 not one")
    _refused(other, "is not a GGUF file")
    other.write_bytes(b"")
    _refused(other, "is empty")
    other.write_bytes(tiny.read_bytes()[:-100])
    _refused(other, "is truncated", "Fetch it again")


def test_other_kinds_and_architectures(write: Write) -> None:
    _refused(write(general__type="adapter"), "is a GGUF adapter, not a model")
    _refused(write(general__type=["model", "model"]), "not a model")
    _refused(write(arch="bert"), "architecture 'bert'", "llama, qwen2, qwen3, deci")
    _refused(write(general__architecture=None), "architecture None")
    _refused(write(general__architecture=["llama", "llama"]), "has architecture")


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_shape_metadata_must_be_there(write: Write, key: str) -> None:
    _refused(write(**{f"llama.{key}": None}), f"lacks the metadata llama.{key}; export it again")


@pytest.mark.parametrize("value", [0, -1, "2", 1.5, [1, 2]])
@pytest.mark.parametrize("key", ["block_count", "embedding_length"])
def test_shape_metadata_must_be_a_count(write: Write, key: str, value: Any) -> None:
    _refused(write(**{f"llama.{key}": value}), f"llama.{key}", "it must be 1 or more")


@pytest.mark.parametrize("layers", [513, 1 << 31, 1 << 40])
def test_a_claim_of_many_layers_costs_nothing(write: Write, layers: int) -> None:
    _refused(write(llama__block_count=layers), f"claims {layers} layers; more than 512 cannot be")


@pytest.mark.parametrize("value", ["4", 1.5, -4, [4.0, 4.0]])
@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
)
def test_per_layer_values_must_be_whole(write: Write, key: str, value: Any) -> None:
    wanted = f"llama.{key} must be whole numbers, 0 or more"
    with pytest.raises(BadModel, match=wanted):
        checked_model(write(**{f"llama.{key}": value}))


def test_per_layer_values_must_be_one_per_layer(write: Write) -> None:
    _refused(write(llama__attention__head_count=[4, 4, 4]), "has 3 values for 2 layers")


@pytest.mark.parametrize(
    ("heads", "kv"), [(8, 3), ([4, 8], [2, 3]), ([4, 4], [2, 0]), ([4, 0], [2, 2])]
)
def test_heads_that_do_not_divide_abort_ggml(write: Write, heads: Any, kv: Any) -> None:
    path = write(arch="deci", deci__attention__head_count=heads, deci__attention__head_count_kv=kv)
    _refused(path, "query heads do not divide over", "kv heads")


def _deci(write: Write, heads: list[int], kv: list[int], ff: list[int]) -> Path:
    return write(
        arch="deci",
        deci__attention__head_count=heads,
        deci__attention__head_count_kv=kv,
        deci__feed_forward_length=ff,
    )


def test_layers_that_llama_cpp_skips_or_aborts_on(write: Write) -> None:
    _refused(
        _deci(write, [4, 4], [2, 2], [128, 0]),
        "layer 1: no feed-forward but attention; llama.cpp skips both",
    )
    _refused(_deci(write, [0, 4], [0, 2], [128, 128]), "layer 0 has no attention; keep one zero kv")
    _refused(_deci(write, [4, 0], [2, 0], [128, 0]), "the last layer is empty; drop it instead")
    checked_model(_deci(write, [4, 0], [2, 0], [128, 128]))


def test_values_that_llama_cpp_asserts(write: Write) -> None:
    _refused(write(tokenizer__ggml__model="no_vocab"), "the tokenizer 'no_vocab'", "gpt2, llama")
    _refused(write(tokenizer__ggml__model=None), "the tokenizer None")
    _refused(write(llama__rope__scaling__type="su"), "rope scaling 'su', not one of none, linear")
    for key in ("expert_count", "expert_used_count", "nextn_predict_layers"):
        _refused(write(**{f"llama.{key}": 8}), f"sets llama.{key}; only dense models are run")
    checked_model(write(llama__expert_count=0))


def test_tokens_that_cannot_be_told_apart_or_fail_on_text(
    write: Write, parts: tuple[Metadata, Tensors]
) -> None:
    tokens = list(parts[0]["tokenizer.ggml.tokens"])
    repeated = [*tokens[:-1], tokens[0]]
    _refused(write(tokenizer__ggml__tokens=repeated), "has a token twice")
    _refused(write(tokenizer__ggml__tokens=None), "has no tokens; export it again")
    _refused(write(tokenizer__ggml__tokens=[1, 2]), "has no tokens")
    _refused(write(tokenizer__ggml__model="llama"), "lacks byte tokens such as <0x0A>")
    checked_model(write(tokenizer__ggml__tokens=["", "", *tokens[2:]]))


def test_tensor_types_without_arithmetic(write: Write, parts: tuple[Metadata, Tensors]) -> None:
    name = "blk.0.attn_q.weight"
    _refused(write(tensors={name: _i32(parts[1][name])}), f"{name} in ggml type 26, which cannot")
    norm = "blk.0.attn_norm.weight"
    half = parts[1][norm].astype(np.float16)
    _refused(write(tensors={norm: half}), f"{norm} in ggml type 1, which cannot be run")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_a_clear_error_or_none(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    """Whatever bytes are hit: BadModel or a header, never another exception."""
    data = bytearray(tiny.read_bytes())
    at %= 12_000
    data[at : at + len(junk)] = junk
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(data)
    try:
        checked_model(path)
    except BadModel as error:
        assert str(path) in error.message or "layers" in error.message or "llama." in error.message


# --- adapters (bug-log A01, A02, A22) ---

GOOD = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": 8.0,
}
Q = "blk.0.attn_q"


def _pair(module: str = Q, a: tuple[int, ...] = (4, WIDTH), b: tuple[int, ...] = (WIDTH, 4)) -> Any:
    return {
        f"{module}.weight.lora_a": np.ones(a, np.float32),
        f"{module}.weight.lora_b": np.ones(b, np.float32),
    }


@pytest.fixture
def adapter(tmp_path: Path, tiny: Path) -> Callable[..., str | None]:
    """Write an adapter and return why it is refused, None if it is not."""

    def adapter(tensors: Tensors, **changes: Any) -> str | None:
        metadata = {**GOOD, **{k.replace("__", "."): v for k, v in changes.items()}}
        path = tmp_path / "adapter.gguf"
        gguf.write(path, {k: v for k, v in metadata.items() if v is not None}, tensors)
        try:
            check_adapter(path, architecture="llama", linears=linear_shapes(gguf.read_header(tiny)))
        except BadAdapter as error:
            assert str(path) in error.message
            return error.message
        return None

    return adapter


Adapter = Callable[..., str | None]


def test_a_good_adapter_passes(adapter: Adapter) -> None:
    assert adapter(_pair()) is None
    assert adapter({**_pair(), **_pair("output", b=(268, 4))}) is None
    assert adapter(_pair(), adapter__lora__alpha=None) is None


def test_an_adapter_that_is_not_there_or_not_one(
    adapter: Adapter, tmp_path: Path, tiny: Path
) -> None:
    for path, words in (
        (tmp_path / "none.gguf", "no adapter file at .*; add the adapter again"),
        (tiny, "is not an adapter file: general.type is not 'adapter'"),
    ):
        with pytest.raises(BadAdapter, match=words):
            check_adapter(path, architecture="llama", linears={})
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-100])
    with pytest.raises(BadAdapter, match="truncated"):
        check_adapter(cut, architecture="llama", linears={})
    assert "general.type is not 'adapter'" in (adapter(_pair(), general__type=None) or "")
    assert "holds no LoRA: adapter.type" in (adapter(_pair(), adapter__type="ia3") or "")
    assert "activated LoRA" in (adapter(_pair(), adapter__alora__invocation_tokens=[1, 2]) or "")


def test_a01_no_module_of_the_model(adapter: Adapter) -> None:
    """One name without a module refuses the whole file and shows names of both sides."""
    found = adapter({**_pair(), **_pair("model.language_model.layers.0.q")}) or ""
    assert "no module model.language_model.layers.0.q in the model (it has e.g. " in found
    assert found.endswith("Nothing was loaded")
    assert "no module blk.7.attn_q" in (adapter(_pair("blk.7.attn_q")) or "")


def test_a02_nothing_to_apply(adapter: Adapter) -> None:
    assert "it holds no tensors" in (adapter({}) or "")


def test_a22_every_tensor_is_used_or_named(adapter: Adapter) -> None:
    """Norms, biases, a third factor: nothing is dropped in silence."""
    assert "no module blk.0.attn_norm" in (adapter({**_pair(), **_pair("blk.0.attn_norm")}) or "")
    bias = {"blk.0.attn_q.bias": np.ones(4, np.float32)}
    assert "no module blk.0.attn_q.bias" in (adapter({**_pair(), **bias}) or "")
    third = {f"{Q}.weight.lora_magnitude": np.ones(4, np.float32)}
    assert f"{Q}.weight.lora_magnitude is no part" in (adapter({**_pair(), **third}) or "")


def test_shapes_halves_and_types(adapter: Adapter) -> None:
    half = _pair()
    half.pop(f"{Q}.weight.lora_b")
    assert f"{Q} has only one of lora_a and lora_b" in (adapter(half) or "")
    assert f"{Q} is (64, 63), the model's is (64, 64)" in (adapter(_pair(a=(4, 63))) or "")
    assert "(32, 64)" in (adapter(_pair(b=(32, 4))) or "")
    assert "not [r, in] and [out, r]" in (adapter(_pair(a=(5, WIDTH))) or "")
    assert "not [r, in] and [out, r]" in (adapter(_pair(a=(WIDTH,))) or "")
    assert f"{Q} has rank 0" in (adapter(_pair(a=(0, WIDTH), b=(WIDTH, 0))) or "")
    integer = {**_pair(), f"{Q}.weight.lora_a": _i32(np.ones((4, WIDTH)))}
    assert f"{Q} is not in F32, F16, BF16 or Q8_0" in (adapter(integer) or "")


def test_many_faults_are_shown_in_part(adapter: Adapter) -> None:
    found = adapter({k: v for i in range(9) for k, v in _pair(f"no.{i}").items()}) or ""
    assert found.count("no module") == 5
    assert "; ...." in found


def test_another_architecture(adapter: Adapter) -> None:
    found = adapter(_pair(), general__architecture="qwen2") or ""
    assert "was made for architecture 'qwen2', the model is llama" in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("adapter.lora.alpha", 8),
        ("adapter.lora.alpha", "8"),
        ("adapter.lora.alpha", np.float64(8)),
        ("adapter.type", 1),
        ("general.type", ["adapter"]),
        ("general.architecture", ["llama", "llama"]),
    ],
)
def test_metadata_types_that_llama_cpp_asserts(adapter: Adapter, key: str, value: Any) -> None:
    found = adapter(_pair(), **{key: value}) or ""
    assert f"the metadata {key} in a type of its own; export it again" in found


@pytest.mark.parametrize("alpha", [float("nan"), float("inf")])
def test_an_alpha_that_is_no_number(adapter: Adapter, alpha: float) -> None:
    assert "alpha that is not a finite number" in (
        adapter(_pair(), adapter__lora__alpha=alpha) or ""
    )


# --- what would end the process never reaches llama.cpp ---

LOAD = """
import sys
from pathlib import Path
from floe.core.errors import FloeError
from floe.engine.llamacpp import LlamaCppEngine
refused = 0
good, *paths = map(Path, sys.argv[1:])
for path in paths:
    try:
        LlamaCppEngine(path, digest="x", threads=1)
    except FloeError:
        refused += path.name.startswith("model")
engine = LlamaCppEngine(good, digest="x", threads=1)
for path in paths:
    try:
        engine.load_adapter(path, key="x")
    except FloeError:
        refused += path.name.startswith("adapter")
print("alive", refused, flush=True)
"""


def test_nothing_that_aborts_ggml_reaches_it(
    tiny: Path, write: Write, parts: tuple[Metadata, Tensors], adapter: Adapter, tmp_path: Path
) -> None:
    """Each of these files ends the process with SIGABRT or SIGSEGV when llama.cpp gets it."""
    norm, q = "blk.0.attn_norm.weight", "blk.0.attn_q.weight"
    tokens = list(parts[0]["tokenizer.ggml.tokens"])
    made: list[Path] = []

    def keep(path: Path) -> None:
        made.append(path.rename(path.with_stem(f"{path.stem}-{len(made)}")))

    for changes in (
        {"arch": "deci", "deci.attention.head_count": 8, "deci.attention.head_count_kv": 3},
        {"llama.expert_count": 7},
        {"llama.block_count": 0},
        {"tokenizer.ggml.model": "no_vocab"},
        {"tokenizer.ggml.model": "llama"},
        {"tokenizer.ggml.tokens": ["a"] * len(tokens)},
        {"llama.rope.scaling.type": "unknown"},
        {"tensors": {norm: parts[1][norm].astype(np.float16)}},
        {"tensors": {q: _i32(parts[1][q])}},
    ):
        keep(write(**changes))
    for changes in ({"adapter.lora.alpha": 8}, {"adapter.lora.alpha": "8"}, {"adapter.type": 1}):
        adapter(_pair(), **changes)
        keep(tmp_path / "adapter.gguf")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tiny), *map(str, made)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"alive {len(made)}\n"), done.stderr[-500:]
