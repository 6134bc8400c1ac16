"""`floe tailor build`, `validate`, `report` on a tiny model, and serving what was built."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from floe.adapters.verify import verify
from floe.assemble import open_engine, open_store
from floe.assemble.models import run_f32
from floe.assemble.tailored import tailored_settings, this_board
from floe.assemble.tailoring import EngineLook
from floe.cli.main import app
from floe.core.config import Config, home
from floe.core.errors import BadModel, BadPlan, NotFound
from floe.core.files import sha256_file
from floe.core.gguf import read_header
from floe.core.sections import ModelConfig
from floe.evaluation.tailoring_report import pareto
from floe.federated.peft_folder import write_peft_folder
from floe.federated.update import AdapterState, Factors
from floe.tailoring.gguf_quant import weights_bytes
from floe.tailoring.manifest import read_manifest
from floe.tailoring.memory import memory_of
from floe.tailoring.plan import LayerPlan, Plan
from floe.tailoring.plan_file import PlanFile, write_plan
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tune import Look, Settings
from floe.testing.tiny_layers import TinyLayers, TinyShape, make_tiny_layers

L = LayerPlan
LAYERS = (
    L(n_kv_heads=2, q_per_kv=2, n_ffn=128), L(n_kv_heads=1, q_per_kv=2, n_ffn=64),
    L(n_kv_heads=0, q_per_kv=0, n_ffn=96), L(n_kv_heads=2, q_per_kv=2, n_ffn=128),
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyLayers:
    shape = TinyShape(n_layers=4, n_ffn=128, is_tied=True)
    return make_tiny_layers(tmp_path_factory.mktemp("tiny"), shape)


@pytest.fixture(scope="module")
def plan(tiny: TinyLayers) -> Path:
    path = tiny.gguf.parent / "plan.json"
    digest = sha256_file(tiny.gguf)
    write_plan(path, PlanFile(plan=Plan(base_digest=digest, layers=LAYERS, importance="flap")))
    record = {"perplexity": 9.0, "cost": {"decode_ms": 1.0, "memory_bytes": 5}}
    path.with_suffix(".trials.jsonl").write_text(f'{{"format": 1}}\n{json.dumps(record)}\n')
    return path


@pytest.fixture(scope="module")
def adapter(tiny: TinyLayers) -> Path:
    rng = np.random.default_rng(0)
    modules = {
        f"model.layers.{i}.self_attn.{m}": Factors(
            a_RI=rng.normal(0, 0.2, (2, 64)).astype(np.float32),
            b_OR=rng.normal(0, 0.2, (rows, 2)).astype(np.float32),
        )
        for i in range(4)
        for m, rows in (("q_proj", 64), ("k_proj", 32), ("o_proj", 64))
    }
    state = AdapterState(base_digest="", modules=modules)
    return write_peft_folder(state, tiny.gguf.parent / "greeting", "tiny-llama")


def run(*arguments: str | Path):
    return CliRunner().invoke(app, ["tailor", *map(str, arguments)])


def build(tiny: TinyLayers, plan: Path, out: Path, *more: str | Path):
    return run(
        "build", "--model", tiny.gguf, "--folder", tiny.folder, "--plan", plan, "--out", out,
        "--quant", "embedding=Q8_0,attention=F16,ffn=Q8_0", "--threads", "1", "--no-tune",
        "--max-ratio", "100", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tiny: TinyLayers, plan: Path, adapter: Path) -> Path:
    out = tiny.gguf.parent / "made"
    examples = tiny.gguf.parent / "examples"
    examples.mkdir()
    rows = [{"prompt": f"say {i}", "answer": "one"} for i in range(6)]
    (examples / "greeting.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = build(
        tiny, plan, out, "--adapters", adapter, "--recover-steps", "2", "--repair", examples,
        "--repair-steps", "2", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["logit_greedy_same"] == 24 and figures["logit_max_error"] < 1e-2
    assert figures["adapters"]["greeting"]["modules"] == 9  # layer 2 has no attention any more
    assert figures["adapters"]["greeting"]["error"] < 5e-2
    assert {"original", "pruned", "recovered", "built"} == set(figures["perplexity"])
    assert "floe: recovering" in done.stderr and "floe: comparing both forms" in done.stderr
    return out


def test_it_is_served_with_the_adapter_that_was_carried_over(built: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(Config(), model=ModelConfig(name=str(built), threads=1))
    engine = open_engine(config.model, home=home())
    try:
        store = open_store(config, engine, home=tmp_path)
        stored = store.get("greeting")
        assert stored.manifest.facts["carried_from"] == ""
        found = verify(
            stored, store.tensors(stored), engine.path, run_f32, model_digest=engine.info.digest,
            cache_folder=tmp_path,
        )  # fmt: skip
        assert found.is_ok, found.reason
        assert found.modules == 9
    finally:
        engine.close()


def test_memory_is_what_was_said_to_the_byte(built: Path, tiny: TinyLayers) -> None:
    manifest = read_manifest(built / "manifest.json", here=this_board())
    shape = shape_of_gguf(read_header(tiny.gguf), base_digest=manifest.base_digest)
    assert weights_bytes(read_header(built / "model.gguf")) == (
        memory_of(shape, manifest.plan).weights_bytes
    )


def test_the_types_and_the_trials_are_kept(built: Path) -> None:
    tensors = read_header(built / "model.gguf").tensors
    assert tensors["blk.1.ffn_up.weight"].type == 8
    assert tensors["blk.1.attn_q.weight"].type == 1
    assert (built / "plan.trials.jsonl").is_file()
    assert (built / "hf" / "tailored_modeling.py").is_file()


def test_validate_says_what_a_file_is_and_refuses_a_changed_one(
    built: Path, tmp_path: Path
) -> None:
    found = json.loads(run("validate", built, "--json").stdout)
    assert found["architecture"] == "deci" and found["layers"] == 4
    assert found["kv_bytes_per_token"] == 2 * (2 + 1 + 0 + 2) * 2 * 16
    assert "4 layers" in run("validate", built / "model.gguf", "--no-load").stdout
    for name in ("manifest.json", "model.gguf"):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    done = run("validate", tmp_path)
    assert isinstance(done.exception, BadModel) and "sha256 differs" in str(done.exception)


def test_report_is_a_page_of_its_own(built: Path) -> None:
    done = run("report", built)
    text = Path(done.stdout.strip()).read_text()
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    words = " ".join(page.itertext())
    assert "layer 2" in words and "2 heads" in words and "as built, quantized" in words
    assert "greeting" in words and "Perplexity against ms a token" in words
    assert text.count("<circle") == 2


def test_the_front_has_the_points_that_no_other_beats() -> None:
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 6.0), (2.0, 3.0), (4.0, 1.0)]
    assert pareto(points) == [(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)]


def test_nothing_is_left_where_building_is_refused(
    tiny: TinyLayers, plan: Path, tmp_path: Path
) -> None:
    missing = build(tiny, plan, tmp_path / "out", "--adapters", "nobody")
    assert isinstance(missing.exception, NotFound)
    wrong = build(tiny, plan, tmp_path / "out", "--quant", "ffn=Q3_K")
    assert isinstance(wrong.exception, BadPlan) and "Q3_K" in str(wrong.exception)
    text = json.loads(plan.read_text()) | {"base_digest": "0" * 64}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(text))
    stranger = build(tiny, other, tmp_path / "out")
    assert isinstance(stranger.exception, BadPlan) and "made for the base" in str(
        stranger.exception
    )
    assert "floe: pruning" not in stranger.stderr  # refused before the model is opened
    text = json.loads(plan.read_text())
    other.write_text(json.dumps(text | {"rules": {"exclude": ["layers.*.ffn"]}}))
    against = build(tiny, other, tmp_path / "out")
    assert isinstance(against.exception, BadPlan) and "layer 1" in str(against.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["other.json"]


def test_settings_found_by_measuring_are_in_the_manifest_and_served(
    tiny: TinyLayers, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning is on unless told; here a batch of 256 with one thread is the fastest."""
    looked: list[Settings] = []

    def look(_: EngineLook, settings: Settings) -> Look:
        looked.append(settings)
        slow = (settings.threads != 1) + (settings.batch_tokens != 256)
        return Look(prefill_ms=10.0 + 5 * slow, decode_ms=2.0 + slow, kv_bytes=1)

    monkeypatch.setattr(EngineLook, "__call__", look)
    out = tmp_path / "tuned"
    done = run(
        "build", "--model", tiny.gguf, "--folder", tiny.folder, "--plan", plan, "--out", out,
        "--max-ratio", "100", "--context", "128", "--threads", "1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = read_manifest(out / "manifest.json", here=None).settings
    assert (found.threads, found.batch_tokens, found.context_tokens) == (1, 256, 128)
    assert {s.flash_attention for s in looked} == {True, False}
    served = tailored_settings(ModelConfig(name=str(out)))
    assert (served.threads, served.batch_tokens, served.context_tokens) == (1, 256, 128)
    assert served.flash_attention is found.flash_attention
    engine = open_engine(ModelConfig(name=str(out)), home=tmp_path)
    try:
        assert (engine.threads, engine.info.context_tokens) == (1, 128)
    finally:
        engine.close()
