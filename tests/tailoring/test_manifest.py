"""Manifests of tailored models: the file, the board, and serving by them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floe.assemble import model_files, open_engine, open_store
from floe.assemble.tailored import (
    carried_adapters,
    manifest_at,
    tailored_settings,
    this_board,
    with_manifest,
)
from floe.cli.main import app
from floe.core.config import Config
from floe.core.errors import BadModel, BadPlan, BadRequest, NotFound
from floe.core.files import sha256_file
from floe.core.sections import AdaptersConfig, ModelConfig
from floe.tailoring.base import Cost
from floe.tailoring.board import Board
from floe.tailoring.manifest import Manifest, model_path, read_manifest, write_manifest
from floe.tailoring.plan import LayerPlan, Plan
from floe.tailoring.tune import Settings
from floe.testing.tiny_model import TinyModel, make_tiny_adapter, make_tiny_model

TUNED = Settings(threads=1, context_tokens=192, kv_type="F32", flash_attention=False,
                 batch_tokens=64)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(tiny: TinyModel, tmp_path: Path) -> Path:
    """A tailored model with one carried adapter, made on this board."""
    folder = tmp_path / "tailored"
    folder.mkdir()
    shutil.copy(tiny.gguf, folder / "model.gguf")
    make_tiny_adapter(folder / "adapters" / "poems", seed=1)
    write_manifest(folder / "manifest.json", manifest_of(folder))
    return folder


def manifest_of(folder: Path) -> Manifest:
    layer = LayerPlan(n_kv_heads=2, q_per_kv=2, n_ffn=128)
    return Manifest(
        name="tiny-tailored",
        model_file="model.gguf",
        model_sha256=sha256_file(folder / "model.gguf"),
        base_digest="b" * 64,
        base_names=("tiny-llama", "org/tiny-llama"),
        plan=Plan(base_digest="b" * 64, layers=(layer, layer), quants={"ffn": "Q8_0"}),
        board=this_board(),
        settings=TUNED,
        cost=Cost(prefill_ms=2.0, decode_ms=1.0, memory_bytes=10, source="measured"),
        cut_file="cut.json",
        adapters=("poems",),
        adapters_folder="adapters",
        perplexity_before=10.0,
        perplexity_after=11.5,
        made_by="evolution",
        facts={"plans": 30},
    )


def test_a_manifest_is_read_back_whole(folder: Path) -> None:
    path = folder / "manifest.json"
    again = read_manifest(path, here=this_board())
    assert again == manifest_of(folder)
    assert model_path(path, again) == folder / "model.gguf"


def test_another_board_is_refused_unless_told(folder: Path) -> None:
    path = folder / "manifest.json"
    board = this_board()
    write_manifest(path, replace(manifest_of(folder), board=replace(board, engine="b0")))
    with pytest.raises(
        BadPlan, match=r"the model .* was made on another board .*engine 'b0', here"
    ):
        read_manifest(path, here=board)
    assert read_manifest(path, here=board, any_board=True).name == "tiny-tailored"
    with pytest.raises(BadPlan, match="or take it as it is with --any-board"):
        with_manifest(Config(), path, any_board=False)
    config = with_manifest(Config(), path, any_board=True)
    assert config.model.any_board and config.model.kv_type == "F32"
    with pytest.raises(BadPlan, match="another board"):
        open_engine(ModelConfig(name=str(path)), home=folder)


def test_a_model_that_is_not_the_manifests_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    with (folder / "model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    with pytest.raises(BadModel, match=r"is not the file manifest.json was made for: its sha256"):
        open_engine(ModelConfig(name=str(path)), home=folder)
    (folder / "model.gguf").unlink()
    with pytest.raises(BadModel, match=r"names model\.gguf, which is not beside it"):
        model_files(str(path), home=folder)


@pytest.mark.parametrize("name", ["../model.gguf", "/etc/passwd", ""])
def test_paths_that_lead_out_are_refused(folder: Path, name: str) -> None:
    path = folder / "other.json"
    with pytest.raises(BadPlan, match="must be a file below the manifest's folder"):
        write_manifest(path, replace(manifest_of(folder), cut_file=name))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"adapters": ("../evil",)}, "adapter name is not allowed"),
        ({"name": "a/b"}, "model name is not allowed"),
        ({"settings": replace(TUNED, kv_type="Q2")}, "settings that no engine has"),
        ({"settings": replace(TUNED, batch_tokens=1)}, "not a whole number in range"),
        ({"cost": Cost(prefill_ms=-1.0, decode_ms=1.0, memory_bytes=1)}, "out of range"),
        ({"base_names": (3,)}, "not a text"),
    ],
)
def test_values_that_cannot_be_are_refused(
    folder: Path, change: dict[str, object], words: str
) -> None:
    path = folder / "manifest.json"
    write_manifest(path, replace(manifest_of(folder), **change))  # type: ignore[arg-type]
    with pytest.raises((BadPlan, BadRequest), match=words):
        read_manifest(path, here=None)


def test_what_was_changed_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    data["perplexity_after"] = 1.0
    path.write_text(json.dumps(data))
    with pytest.raises(BadPlan, match=r"its digest differs. Make the tailored model again"):
        read_manifest(path, here=None)


# --- serving ---


def test_the_engine_takes_its_settings(folder: Path) -> None:
    found = tailored_settings(ModelConfig(name=str(folder)))
    for name in ("threads", "context_tokens", "kv_type", "flash_attention", "batch_tokens"):
        assert getattr(found, name) == getattr(TUNED, name)
    mine = ModelConfig(name=str(folder / "manifest.json"), context_tokens=128)
    engine = open_engine(mine, home=folder)
    try:
        info = engine.info
        assert (info.name, info.context_tokens) == ("tiny-tailored", 128)  # what is set wins
        assert engine.threads == 1
        assert {"tiny-tailored", "tiny-llama", "org/tiny-llama"} <= info.names
        assert info.digest == sha256_file(folder / "model.gguf")
    finally:
        engine.close()
    plain = ModelConfig(name="smollm2-135m-instruct")
    assert tailored_settings(plain) is plain
    assert manifest_at("smollm2-135m-instruct") is None
    assert carried_adapters("smollm2-135m-instruct") is None


def test_carried_adapters_are_put_in_and_shipped_ones_left_out(
    folder: Path, tmp_path: Path
) -> None:
    config = Config(model=ModelConfig(name=str(folder)), adapters=AdaptersConfig(shipped=True))
    engine = open_engine(config.model, home=tmp_path)
    try:
        store = open_store(config, engine, home=tmp_path)
        assert [entry.name for entry in store.entries()] == ["poems"]
        assert (tmp_path / "adapters" / "tiny-tailored").is_dir()
        assert [e.name for e in open_store(config, engine, home=tmp_path).entries()] == ["poems"]
    finally:
        engine.close()


def test_a_path_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no manifest at .*; floe tailor build writes one"):
        with_manifest(Config(), tmp_path, any_board=True)


def test_boards_say_what_they_are() -> None:
    here = this_board()
    assert set(here.machine) >= {"cpu", "cores", "architecture"}
    assert all(isinstance(v, str) and v for v in here.machine.values())
    assert here == Board(machine=dict(here.machine), engine=here.engine)


def test_serve_refuses_another_boards_model(folder: Path) -> None:
    path = folder / "manifest.json"
    write_manifest(path, replace(manifest_of(folder), board=Board(machine={}, engine="b0")))
    done = CliRunner().invoke(app, ["serve", "--manifest", str(path)])
    assert isinstance(done.exception, BadPlan) and "--any-board" in done.exception.message
