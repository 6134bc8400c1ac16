"""`floe adapters` on a tiny model: success means it is listed, failure means nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from floe.testing.tiny_model import TinyModel, make_tiny_adapter, make_tiny_model


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def tiny(home: Path) -> TinyModel:
    return make_tiny_model(home)


def adapters(
    home: Path, tiny: TinyModel, verb: str, *rest: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floe", "adapters", verb, *rest, "--model", str(tiny.gguf)]
    env = {**os.environ, "FLOE_HOME": str(home)}
    return subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=120)


def listed(home: Path, tiny: TinyModel) -> dict[str, dict[str, object]]:
    rows = json.loads(adapters(home, tiny, "list", "--json").stdout)
    return {row["name"]: row for row in rows}


def test_a10_a11_any_rank_is_taken_and_the_listing_shows_the_true_one(
    home: Path, tiny: TinyModel
) -> None:
    for rank in (1, 48):
        make_tiny_adapter(home / f"r{rank}", seed=rank, rank=rank)
        done = adapters(home, tiny, "add", f"r{rank}")
        assert done.returncode == 0, done.stderr
        assert f"rank {rank}" in done.stdout
    rows = listed(home, tiny)
    assert [rows[n]["rank"] for n in ("r1", "r48")] == [1, 48]
    assert rows["r1"]["file_bytes"] < rows["r48"]["file_bytes"]  # type: ignore[operator]


def test_a35_a_refused_adapter_is_an_error_and_is_not_listed(home: Path, tiny: TinyModel) -> None:
    make_tiny_adapter(home / "alien", seed=1, base_model_name_or_path="someone/else-7b")
    done = adapters(home, tiny, "add", "alien")
    assert done.returncode == 5
    assert done.stdout == ""
    assert "else-7b" in done.stderr
    assert "--any-base" in done.stderr
    assert listed(home, tiny) == {}


def test_add_inspect_verify_remove(home: Path, tiny: TinyModel) -> None:
    make_tiny_adapter(home / "letters", seed=3, alpha=0.5)
    assert adapters(home, tiny, "add", "letters", "--description", "formal").returncode == 0
    seen = json.loads(adapters(home, tiny, "inspect", "letters", "--json").stdout)
    assert seen["description"] == "formal"
    proof = json.loads(adapters(home, tiny, "verify", "letters", "--json").stdout)
    assert proof[0]["is_ok"] is True
    assert proof[0]["effect"] > 10 * proof[0]["max_difference"]
    assert adapters(home, tiny, "rm", "letters").returncode == 0
    assert listed(home, tiny) == {}
    assert adapters(home, tiny, "rm", "letters").returncode == 4


def test_an_adapter_larger_than_the_budget_is_added_with_a_warning(
    home: Path, tiny: TinyModel
) -> None:
    (home / "floe.toml").write_text("[adapters]\nbudget_bytes = 1000\n")
    make_tiny_adapter(home / "big", seed=1)
    done = adapters(home, tiny, "add", "big")
    assert done.returncode == 0, done.stderr
    size = listed(home, tiny)["big"]["file_bytes"]
    assert (
        f"warning: big needs {size} bytes in memory, adapters.budget_bytes is 1000: no request "
        "can use it until that setting is raised" in done.stderr
    )


def test_removing_a_shipped_name_says_how_to_restore_it(home: Path, tiny: TinyModel) -> None:
    make_tiny_adapter(home / "maths", seed=1)
    assert adapters(home, tiny, "add", "maths").returncode == 0
    done = adapters(home, tiny, "rm", "maths")
    assert done.returncode == 0
    assert "maths comes with Floe; put it back with: floe adapters restore maths" in done.stderr
    again = adapters(home, tiny, "restore", "maths")  # made for another base than the tiny model
    assert again.returncode == 5
    assert "cannot be applied" in again.stderr
    unknown = adapters(home, tiny, "restore", "letters")
    assert unknown.returncode == 4
    assert "no adapter 'letters' comes with Floe; these do: code, finance" in unknown.stderr


@pytest.mark.parametrize("name", ["auto", "wordllama-256"])
def test_a_name_of_something_else_is_refused(home: Path, tiny: TinyModel, name: str) -> None:
    make_tiny_adapter(home / "letters", seed=1)
    done = adapters(home, tiny, "add", "letters", "--name", name)
    assert done.returncode != 0
    assert f"a request for '{name}' never reaches an adapter of that name" in done.stderr


def test_a40_a_windows_path_is_told_what_was_expected(home: Path, tiny: TinyModel) -> None:
    done = adapters(home, tiny, "add", "C:\\x")
    assert done.returncode == 5
    assert "there is nothing at C:\\x; expected a PEFT folder" in done.stderr.replace("\n", " ")
