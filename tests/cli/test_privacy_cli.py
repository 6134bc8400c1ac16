"""`floe privacy ledger` on files that are missing, whole, broken, torn or no files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from floe.assemble import LEDGER
from floe.cli.privacy import app
from floe.core.errors import FloeError
from floe.privacy.ledger import EgressLedger


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path))
    return tmp_path / LEDGER


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ledger", *arguments])


def fill(path: Path, n: int) -> None:
    book = EgressLedger(path=path)
    for i in range(n):
        book.record("https://cloud.example/v1", b"x", "nothing private", f"req-{i}")
    book.close()


def test_no_ledger(path: Path) -> None:
    assert run().stdout == f"no ledger at {path}: nothing was recorded as sent\n"
    assert json.loads(run("--json").stdout) == {"entries": [], "sound": True, "path": str(path)}
    assert not path.exists()


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling link"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_what_is_no_ledger_is_an_error(path: Path, kind: str, more: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    done = run(*more)
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, FloeError)
    assert done.exception.message == (
        f"cannot read the egress ledger {path}: it is not a regular file. Run this as the user "
        "who runs floe; if it is no file, move it away (it is written when something first leaves)"
    )


def test_a_place_that_cannot_be_looked_at_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floe.assemble.LEDGER", "x" * 300)  # longer than a name may be
    done = run()
    assert done.exit_code == 1
    assert isinstance(done.exception, FloeError)
    assert "File name too long" in done.exception.message


def test_a_ledger_that_is_only_readable_is_shown_and_left_alone(path: Path) -> None:
    fill(path, 1)
    path.chmod(0o444)
    assert run().stdout.endswith(f"1 entry in {path}; the chain is whole\n")
    assert path.stat().st_mode & 0o777 == 0o444


def test_last_counts_from_the_newest(path: Path) -> None:
    fill(path, 3)
    for n in (0, 1, 2, 5):
        entries = json.loads(run("--last", str(n), "--json").stdout)["entries"]
        assert [e["request_id"] for e in entries] == ["req-0", "req-1", "req-2"][3 - min(n, 3) :]
    assert run("--last", "-1").exit_code == 2


def test_a_broken_chain_says_where(path: Path) -> None:
    fill(path, 3)
    path.write_text(path.read_text().replace("req-2", "req-9"))
    done = run()
    assert done.exit_code == 1
    assert done.stdout.endswith("the chain is broken at line 3: the line was changed\n")
    data = json.loads(run("--json").stdout)
    assert (data["sound"], data["broken_line"], data["path"]) == (False, 3, str(path))


def test_a_torn_last_line_is_mentioned(path: Path) -> None:
    fill(path, 2)
    with path.open("ab") as file:
        file.write(b'{"time":"20')
    done = run()
    assert done.exit_code == 0
    assert done.stdout.endswith(
        "whole; the last line is torn (11 bytes, cut short while written)\n"
    )
    assert json.loads(run("--json").stdout)["torn_end_bytes"] == 11


def test_entries_of_files_put_aside_are_counted_and_shown(path: Path) -> None:
    book = EgressLedger(path=path, max_file_bytes=500)
    for i in range(6):
        book.record("https://cloud.example/v1", b"x", "nothing private", f"req-{i}")
    book.close()
    data = json.loads(run("--last", "5", "--json").stdout)
    assert [e["request_id"] for e in data["entries"]] == [f"req-{i}" for i in range(1, 6)]
    assert (data["total_entries"], data["last_hash"]) == (6, data["entries"][-1]["hash"])
    assert run().stdout.endswith(f"6 entries in {path}; the chain is whole\n")
    (path.parent / "egress.0001.jsonl").unlink()
    assert "the chain is broken at line 1 of egress.0002.jsonl: a line before" in run().stdout
