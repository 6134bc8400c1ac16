"""`floe fed plan` and `floe fed train` on a tiny model, up to the store that takes the adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch", reason="an extra: pip install 'floe[train]'")

from floe.cli.main import main
from floe.core.errors import FloeError
from floe.federated.checkpoints import Checkpoint, Checkpoints
from floe.federated.on_torch import measure
from floe.federated.peft_folder import read_peft_folder
from floe.federated.plan import Measurement
from floe.testing.tiny_model import TinyModel, make_tiny_model

SECRET = "my sister was admitted"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Floe = Callable[..., Ran]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture
def floe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Floe:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        shown = capfd.readouterr()
        return Ran(int(ended.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    lines = [{"prompt": f"{SECRET} {n}", "answer": f"answer {n % 3}"} for n in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_plan_measures_the_ends_and_models_the_rest(
    floe: Floe, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fake(work: measure.Workload, rank: int) -> Measurement:
        asked.append((work.steps, work.batch, work.tokens, work.answer_tokens, rank))
        return Measurement(rank=rank, memory_bytes=10**8 + rank * 10**6, step_s=0.5)

    monkeypatch.setattr(measure, "measure_rank", fake)
    ran = floe(
        "fed", "plan", "--base", str(tiny.folder), "--quick", "--json",
        "--tokens", "12", "--ranks", "2,4,8", "--memory-mb", "104",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["rank"] == 4
    assert [(r["rank"], r["source"], r["fits"]) for r in found["rows"]] == [
        (2, "measured", True), (4, "modelled", True), (8, "measured", False)
    ]  # fmt: skip
    assert asked == [(1, 4, 12, 3, 2), (1, 4, 12, 3, 8)]
    assert "training 2 steps at rank 8" in ran.err


def test_a_rank_is_measured_in_a_process_of_its_own(tiny: TinyModel) -> None:
    work = measure.Workload(
        folder=tiny.folder, targets=("q_proj",), batch=2, tokens=8, answer_tokens=2, steps=1
    )
    found = measure.measure_rank(work, 3)
    assert found.rank == 3
    assert 100e6 < found.memory_bytes < 3e9  # torch itself, and not what this process holds
    assert 0.0 < found.step_s < 60.0


def test_a_plan_that_nothing_fits_shows_the_table_and_says_so(
    floe: Floe, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(work: measure.Workload, rank: int) -> Measurement:
        return Measurement(rank=rank, memory_bytes=500_000_000, step_s=1.5)

    monkeypatch.setattr(measure, "measure_rank", fake)
    ran = floe("fed", "plan", "--base", str(tiny.folder), "--memory-mb", "100", "--step-s", "9")
    assert ran.code == 2
    assert "not even rank 4 fits: needs 500 MB, 100 are allowed" in ran.err
    assert "limits: 100 MB and 9 s a step" in ran.out
    ran = floe("fed", "plan", "--base", str(tiny.folder), "--ranks", "4")
    assert ran.code == 0
    assert "rule of thumb by free memory" in ran.out
    assert floe("fed", "plan", "--ranks", "4,x").err == (
        "floe: --ranks must be numbers with commas, as 4,8,16\n"
    )
    assert "--ranks must be 1 or more" in floe("fed", "plan", "--ranks", "0,4").err


def test_a_child_that_fails_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = measure.Workload(folder=tmp_path, targets=("q_proj",))
    with pytest.raises(FloeError, match="measuring rank 4 took longer than 0 s"):
        measure.measure_rank(work, 4, timeout_s=0.001)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho out of memory >&2\nexit 9\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(FloeError, match="measuring rank 4 failed with exit 9: out of memory"):
        measure.measure_rank(work, 4)


def test_train_writes_what_the_store_takes_and_serves(
    floe: Floe, tiny: TinyModel, data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "floe.toml"
    config.write_text("[federated]\nlearning_rate = 0.005\n")
    out = tmp_path / "mine"
    command = (
        "fed", "train", str(data), "--out", str(out), "--rank", "4", "--steps", "6",
        "--model", str(tiny.gguf), "--config", str(config),
    )  # fmt: skip
    ran = floe(*command)
    assert ran.code == 0, ran.err
    assert "step 6 of 6" in ran.err
    assert "sister" not in ran.out + ran.err
    assert sorted(p.name for p in out.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "card.json"
    ]  # fmt: skip
    card = json.loads((out / "card.json").read_text())
    assert card["loss_after"] < card["loss_before"]
    assert read_peft_folder(out).rank == 4
    added = floe("adapters", "add", str(out), "--name", "mine", "--model", str(tiny.gguf))
    assert added.code == 0, added.err
    assert "added mine: rank 4" in added.out
    again = floe(*command)
    assert again.code == 2
    assert "holds an adapter already" in again.err


def test_a_stopped_run_is_not_begun_anew_by_accident(
    floe: Floe, tiny: TinyModel, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    Checkpoints(out).save(Checkpoint(run="other", step=2, arrays={}))
    command = (
        "fed", "train", str(data), "--out", str(out), "--rank", "4", "--steps", "2", "--json",
        "--base", str(tiny.folder),
    )  # fmt: skip
    ran = floe(*command)
    assert (ran.code, ran.out) == (2, "")
    assert "a training run stopped in" in ran.err
    ran = floe(*command, "--resume")
    assert ran.code == 2
    assert "is of another run: its data, settings, seed or base differ" in ran.err
    Checkpoints(out).clear()
    ran = floe(*command, "--resume")
    assert json.loads(ran.out)["steps"] == 2


def test_what_would_fail_after_training_is_refused_before(
    floe: Floe, tiny: TinyModel, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    command = ("fed", "train", str(data), "--base", str(tiny.folder), "--steps", "1")
    for out in ("file", "file/below", "/proc/below"):
        ran = floe(*command, "--out", out)
        assert (ran.code, ran.out) == (2, "")
        assert "cannot make the folder" in ran.err
    ran = floe(*command, "--out", "mine", "--rank", "99999")
    assert ran.code == 2
    assert "rank 99999 is above 64, a layer's inputs" in ran.err
    for rate, told in (("nan", "finite and above 0"), ("0", "finite and above 0")):
        ran = floe(*command, "--out", "mine", "--rank", "2", "--learning-rate", rate)
        assert (ran.code, ran.out) == (2, "")
        assert told in ran.err
    ran = floe(*command, "--out", "mine", "--rank", "2", "--learning-rate", "1e30")
    assert (ran.code, ran.out) == (1, "")
    assert "the training ran away" in ran.err
    assert not (tmp_path / "mine" / "adapter_config.json").exists()


def test_bad_data_is_told_without_its_text(floe: Floe, tiny: TinyModel, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "' + SECRET + '"}\n')
    ran = floe("fed", "train", str(bad), "--out", str(tmp_path / "o"), "--base", str(tiny.folder))
    assert ran.code == 2
    assert "line 1 of" in ran.err
    assert "sister" not in ran.err
    assert not (tmp_path / "o").exists()
    ran = floe("fed", "train", str(tmp_path / "no"), "--out", str(tmp_path / "o"))
    assert ran.code == 4


def test_without_torch_the_command_says_what_to_install(data: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from floe.cli.main import main; "
        "main(['fed', 'train', sys.argv[1], '--out', sys.argv[2]])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(data), str(tmp_path / "o")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 8
    assert "training needs torch: install it with pip install 'floe[train]'" in ran.stderr
