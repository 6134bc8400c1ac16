"""The breakdown's arithmetic on times that are known, and one run on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from floe.assemble.tailoring import EngineTimer
from floe.cli.main import app
from floe.core import gguf
from floe.core.errors import BadModel, BadRequest
from floe.evaluation import bench, report
from floe.evaluation.latency_bench import (
    PARTS,
    breakdown,
    parts_of,
    sampling_ms,
    types_of,
    variants_of,
)
from floe.tailoring.plan import GROUPS, LayerPlan, ModelShape
from floe.tailoring.profile import Timing
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tune import Settings
from floe.testing.tiny_model import make_tiny_model

SHAPE = ModelShape(
    base_digest="x", n_layers=10, width=64, n_kv_heads=2, q_per_kv=2, head_width=16, n_ffn=320,
    n_vocab=1000,
)  # fmt: skip


def timing(decode_ms: float, prefill_ms: float, depth: int = 100) -> Timing:
    return Timing(decode_ms=decode_ms, prefill_ms=prefill_ms, depth_tokens=depth)


def test_parts_add_up_to_the_whole() -> None:
    # a token: attention 3 (10 layers), FFN 5, head 2, log-softmax 0.25, the rest 0.75
    times = {
        "whole": timing(11.0, 110.0),
        "no attention": timing(11.0 - 2.7, 110.0 - 27.0),
        "thin ffn": timing(11.0 - 4.5, 110.0 - 45.0),
        "no head": timing(11.0 - 2.25, 110.0 - 2.25),
        "long cache": timing(12.0, 110.0, depth=600),
    }
    found = parts_of(SHAPE, times, prompt_tokens=50, normalise_ms=0.25, draw_ms=0.5)
    wanted = {"attention": 3.0, "ffn": 5.0, "head": 2.0, "sampling": 0.75, "embedding": 0.002}
    for part, ms in wanted.items():
        assert found[f"decode_{part}_ms"] == pytest.approx(ms), part
    assert found["prefill_attention_ms"] == pytest.approx(30.0)
    assert found["prefill_embedding_ms"] == pytest.approx(2.0 * 50 / 1000)
    assert found["prefill_sampling_ms"] == pytest.approx(0.25)
    for phase, outside in (("decode", 0.5), ("prefill", 0.0)):  # a draw is not in the engine
        total = sum(found[f"{phase}_{part}_ms"] for part in PARTS)
        assert total - outside == pytest.approx(found[f"{phase}_ms"])
    assert found["decode_cache_ms_per_1000_tokens"] == pytest.approx(2.0)
    for part in (*PARTS, "cache"):
        assert found[f"{part}_how"].split(":")[0] in ("measured", "derived")


def test_variants_lack_one_part_each() -> None:
    found = variants_of(SHAPE)
    whole = LayerPlan(n_kv_heads=2, q_per_kv=2, n_ffn=320)
    assert found["whole"].layers == (whole,) * 10
    assert found["no attention"].layers[0] == whole  # llama.cpp needs one head there
    assert all(one.n_kv_heads == 0 and one.n_ffn == 320 for one in found["no attention"].layers[1:])
    assert all(one.n_ffn == 32 and one.n_kv_heads == 2 for one in found["thin ffn"].layers)
    assert not found["no head"].whole_vocab and found["long cache"].depth_tokens == 768


def test_a_tiny_model_is_broken_down(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    header = gguf.read_header(tiny.gguf)
    shape = shape_of_gguf(header, base_digest="x")
    said: list[str] = []
    types = types_of(header)
    assert types == dict.fromkeys(GROUPS, "F32")
    timer = EngineTimer(settings=Settings(threads=1), prompt_tokens=16, decode_tokens=4)
    found = breakdown(shape, types, timer, base=tiny.gguf, rounds=1, say=said.append)
    assert found["decode_ms"] > 0 and found["prefill_ms"] > 0 and found["prompt_tokens"] == 16
    assert said == ["breakdown: round 1 of 1"]
    assert min(sampling_ms(300)) > 0


def test_types_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    raw = gguf.RawTensor(shape=(1, 256), type=12, load=lambda: bytes(144))
    gguf.write(tmp_path / "k.gguf", {}, {"token_embd.weight": raw})
    with pytest.raises(BadModel, match="embedding is of ggml type 12; a breakdown can be made of"):
        types_of(gguf.read_header(tmp_path / "k.gguf"))


def test_the_benchmark_is_registered() -> None:
    assert "latency" in bench.BENCHMARKS and report.PAGES["latency"].charts
    done = CliRunner().invoke(app, ["bench", "decode", "--breakdown"])
    assert isinstance(done.exception, BadRequest)
    assert "--breakdown is for: floe bench latency" in done.exception.message
