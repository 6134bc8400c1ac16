"""Quantization by tensor groups: bounds, weighted scales, files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from floe.core import gguf
from floe.core.errors import BadModel, BadPlan, Missing
from floe.engine.llamacpp import LlamaCppEngine
from floe.tailoring.gguf_quant import (
    TYPE_IDS,
    dequantize,
    group_of,
    quantize,
    quantize_gguf,
    stored_as,
)
from floe.testing.tiny_model import TinyModel, make_tiny_model

FOUR_AND_FIVE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1")
# The worst error of a value in units of its block: of its largest magnitude, or of its span.
WORST = {"Q8_0": 1 / 127, "Q5_0": 1 / 16, "Q4_0": 1 / 8, "Q5_1": 1 / 31, "Q4_1": 1 / 15}
FINITE = st.floats(-100, 100, width=32)
ROWS = hnp.arrays(np.float32, (2, 64), elements=FINITE)
WEIGHTS = hnp.arrays(np.float64, 64, elements=st.floats(0, 1e4))


def back(raw: np.ndarray, quant: str, shape: tuple[int, ...]) -> np.ndarray:
    return dequantize(raw, TYPE_IDS[quant], shape)


@pytest.mark.parametrize("quant", sorted(WORST))
@settings(max_examples=40, deadline=None)
@given(x=ROWS)
def test_error_stays_within_a_step(quant: str, x: np.ndarray) -> None:
    blocks = x.reshape(-1, 32)
    unit = np.ptp(blocks, axis=1) if quant.endswith("_1") else np.abs(blocks).max(axis=1)
    error = np.abs(back(quantize(x, quant), quant, x.shape) - x).reshape(-1, 32).max(axis=1)
    rounding = 2e-3 * np.abs(blocks).max(axis=1)  # scales are kept in half precision
    assert (error <= unit * WORST[quant] + rounding + 1e-4).all()


@pytest.mark.parametrize("quant", sorted(WORST))
def test_equals_the_reference(quant: str) -> None:
    package = pytest.importorskip("gguf")
    x = np.random.default_rng(0).normal(size=(300, 96)).astype(np.float32)
    wanted = package.quants.quantize(x, package.GGMLQuantizationType(TYPE_IDS[quant]))
    np.testing.assert_array_equal(quantize(x, quant), wanted.reshape(-1))


@pytest.mark.parametrize("quant", FOUR_AND_FIVE)
@settings(max_examples=40, deadline=None)
@given(x=ROWS, importance=WEIGHTS)
def test_weighted_scales_are_never_worse(quant: str, x: np.ndarray, importance: np.ndarray) -> None:
    mean = importance.mean()
    weights = importance / mean + 0.01 if mean > 0 else np.ones(64)

    def error(raw: np.ndarray) -> np.ndarray:
        off = (back(raw, quant, x.shape).astype(np.float64) - x) ** 2 * weights
        return off.reshape(-1, 32).sum(axis=1)

    plain, fitted = error(quantize(x, quant)), error(quantize(x, quant, importance_I=importance))
    assert (fitted <= plain * (1 + 1e-4) + 1e-9).all()


@pytest.mark.parametrize(("quant", "gain"), [("Q4_1", 0.85), ("Q4_0", 0.95), ("Q5_1", 0.85)])
def test_weighted_scales_help(quant: str, gain: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_t(4, size=(64, 256)).astype(np.float32)
    w = rng.gamma(0.5, size=256)

    def error(raw: np.ndarray) -> float:
        return float((w * (back(raw, quant, x.shape) - x) ** 2).sum())

    assert error(quantize(x, quant, importance_I=w)) < gain * error(quantize(x, quant))


@pytest.mark.parametrize("quant", sorted(WORST))
@pytest.mark.parametrize("size", [0.0, 1e-45, 2.8e-38, 1e-30])
def test_values_next_to_nothing_become_nothing(quant: str, size: float) -> None:
    x = np.full((2, 64), size, np.float32)
    x[0, 0] = 0.0
    for importance in (None, np.ones(64)):
        found = back(quantize(x, quant, importance_I=importance), quant, x.shape)
        assert np.isfinite(found).all() and np.abs(found).max() < 1e-6


@pytest.mark.parametrize("quant", FOUR_AND_FIVE)
def test_quantized_again_costs_nothing(quant: str) -> None:
    x = np.random.default_rng(2).normal(size=(64, 64)).astype(np.float32)
    once = back(quantize(x, quant), quant, x.shape)
    np.testing.assert_allclose(back(quantize(once, quant), quant, x.shape), once, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("token_embd.weight", "embedding"),
        ("output.weight", "output"),
        ("output_norm.weight", None),
        ("blk.3.attn_q.weight", "attention"),
        ("blk.3.attn_output.weight", "attention"),
        ("blk.3.attn_norm.weight", None),
        ("blk.3.attn_q.bias", None),
        ("blk.3.ffn_down.weight", "ffn"),
        ("blk.3.ffn_norm.weight", None),
        ("rope_freqs.weight", None),
    ],
)
def test_group_of(name: str, group: str | None) -> None:
    assert group_of(name) == group


# --- files ---


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def log_probs(path: Path) -> np.ndarray:
    engine = LlamaCppEngine(path, threads=1, context_tokens=128, kv_f32=True)
    try:
        return engine.session().result().feed(list(range(5, 60)), every=True)
    finally:
        engine.close()


def test_each_group_gets_its_type(tiny: TinyModel, tmp_path: Path) -> None:
    quants = {"embedding": "Q8_0", "attention": "F16", "ffn": "Q5_1", "output": "Q8_0"}
    told: list[tuple[str, int, int]] = []
    target = tmp_path / "q.gguf"
    found = quantize_gguf(tiny.gguf, target, quants, on_tensor=lambda *a: told.append(a))
    header, source = gguf.read_header(target), gguf.read_header(tiny.gguf)
    for name, info in header.tensors.items():
        group = group_of(name)
        assert info.type == (TYPE_IDS[quants[group]] if group else gguf.F32), name
        assert info.shape == source.tensors[name].shape
    assert found.types == {"Q8_0": 2, "F16": 8, "Q5_1": 6, "F32": 5}
    assert found.fallbacks == () and found.file_bytes == target.stat().st_size
    assert told[-1][1:] == (21, 21)
    for key, span in source.spans.items():
        if key != "general.file_type":
            start, stop = header.spans[key][1:]
            assert target.read_bytes()[start:stop] == tiny.gguf.read_bytes()[span[1] : span[2]], key
    off = np.abs(log_probs(target) - log_probs(tiny.gguf))  # activations are quantized as well
    assert 0 < off.mean() < 0.15


def test_groups_not_named_stay(tiny: TinyModel, tmp_path: Path) -> None:
    quantize_gguf(tiny.gguf, tmp_path / "q.gguf", {"ffn": "Q8_0"})
    header = gguf.read_header(tmp_path / "q.gguf")
    assert header.tensors["token_embd.weight"].type == gguf.F32
    assert header.tensors["blk.0.ffn_up.weight"].type == gguf.Q8_0


def test_rows_that_blocks_do_not_fill_become_f16(tmp_path: Path) -> None:
    source = tmp_path / "odd.gguf"
    down, up = np.ones((8, 40), np.float32), np.ones((40, 32), np.float32)
    gguf.write(
        source,
        {"general.architecture": "llama"},
        {"blk.0.ffn_down.weight": down, "blk.0.ffn_up.weight": up},
    )
    found = quantize_gguf(source, tmp_path / "q.gguf", {"ffn": "Q4_0"})
    assert found.fallbacks == ("blk.0.ffn_down.weight",)
    assert found.types == {"F16": 1, "Q4_0": 1}
    assert stored_as("Q4_0", 40) == "F16"


@pytest.mark.parametrize(
    ("quants", "words"),
    [
        ({"head": "Q8_0"}, "no tensor group 'head'; groups are embedding, attention"),
        ({"ffn": "Q3_K"}, "type 'Q3_K' of group 'ffn' is not one of F32, F16, Q8_0"),
    ],
)
def test_unknown_groups_and_types_are_refused(
    tiny: TinyModel, tmp_path: Path, quants: dict[str, str], words: str
) -> None:
    with pytest.raises(BadPlan, match=words):
        quantize_gguf(tiny.gguf, tmp_path / "q.gguf", quants)
    assert not (tmp_path / "q.gguf").exists()


def test_arrays_that_cannot_be_quantized_are_refused() -> None:
    x = np.ones((2, 40), np.float32)
    with pytest.raises(BadPlan, match="rows of 40 values cannot be Q4_1"):
        quantize(x, "Q4_1")
    with pytest.raises(BadPlan, match="type 'Q9' is not one of"):
        quantize(x, "Q9")
    with pytest.raises(BadPlan, match=r"importance of shape \(3,\) does not weigh 32 inputs"):
        quantize(np.ones((2, 32), np.float32), "Q4_1", importance_I=np.ones(3))


def test_a_type_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    source = tmp_path / "odd.gguf"
    raw = gguf.RawTensor(shape=(2, 32), type=26, load=lambda: np.zeros((2, 32), np.int32))
    gguf.write(source, {"general.architecture": "llama"}, {"blk.0.ffn_up.weight": raw})
    with pytest.raises(BadModel, match=r"blk\.0\.ffn_up\.weight: a tensor of ggml type 26"):
        quantize_gguf(source, tmp_path / "q.gguf", {"ffn": "Q8_0"})


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(Missing, match=r"pip install 'floe\[tailor\]'"):
        quantize(np.ones((2, 32), np.float32), "Q8_0")
