"""A checkpoint: whole or not there, never another run's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from floe.core.errors import BadRequest
from floe.federated.checkpoints import Checkpoint, Checkpoints


def some(step: int = 3, run: str = "r") -> Checkpoint:
    arrays = {"a.x": np.arange(6, dtype=np.float32).reshape(2, 3), "m.0": np.full(2, 1e-38, "f4")}
    return Checkpoint(run=run, step=step, arrays=arrays, facts={"losses": [1.5, None]})


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "new")
    assert kept.load("r") is None
    kept.save(some())
    found = kept.load("r")
    assert found is not None
    assert (found.step, found.facts) == (3, {"losses": [1.5, None]})
    for name, array in some().arrays.items():
        assert found.arrays[name].tobytes() == array.tobytes()
    kept.save(some(step=4))
    assert (kept.load("r") or found).step == 4
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["training.safetensors"]
    assert kept.path.stat().st_mode & 0o077 == 0  # what it learned from is nobody else's
    kept.clear()
    assert kept.load("r") is None


def test_another_runs_checkpoint_is_passed_over_or_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(some(run="old"))
    assert Checkpoints(tmp_path).load("new") is None
    with pytest.raises(BadRequest, match="of another run: its data, settings, seed or base differ"):
        Checkpoints(tmp_path, strict=True).load("new")


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_damaged_files_are_refused(tmp_path: Path, cut: int) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(some())
    kept.path.write_bytes(kept.path.read_bytes()[:cut])
    with pytest.raises(BadRequest, match="is damaged; delete it to begin anew"):
        kept.load("r")


def test_a_foreign_safetensors_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2, np.float32)}, tmp_path / "training.safetensors")
    with pytest.raises(BadRequest, match="is damaged"):
        Checkpoints(tmp_path).load("r")


def test_a_crash_while_writing_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(some())

    def broken(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="no space left"):
        kept.save(some(step=9))
    monkeypatch.undo()
    assert (kept.load("r") or some(step=0)).step == 3


def test_steps_between_checkpoints_are_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoints(tmp_path, every_steps=0)
