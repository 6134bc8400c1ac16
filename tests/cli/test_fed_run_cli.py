"""`floe fed simulate | server | join | report` as a person calls them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floe.cli.main import app
from floe.testing.tiny_model import make_tiny_model

TABLE = """[federated]
base = "{base}"
rounds = 1
steps = 1
batch = 2
ranks = [4, 8]
clusters = 1
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, two devices' examples and a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "home"))
    base = make_tiny_model(tmp_path / "tiny").folder
    (tmp_path / "clients").mkdir()
    for name in ("a", "b"):
        rows = [{"prompt": f"{name} {n}", "answer": str(n)} for n in range(8)]
        (tmp_path / "clients" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "floe.toml").write_text(TABLE.format(base=base))
    return tmp_path


def floe(*arguments: str) -> str:
    """What a command prints; its error as it is."""
    result = CliRunner().invoke(app, ["fed", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_simulate_then_report(world: Path) -> None:
    told = json.loads(floe("simulate", "clients", "--backend", "inline", "--json"))
    assert told["totals"]["accepted"] == 2
    assert told["rounds"][0]["selected"] == ["a", "b"]
    assert json.loads(floe("report", "--json")) == told
    text = floe("report", "--html", "page.html")
    assert "round 1: 2 of 2 updates" in text
    assert "1 rounds, 2 updates, 0 refused" in text
    page = (world / "page.html").read_text()
    assert "<td>a, b</td>" in page
    more = json.loads(floe("simulate", "clients", "--backend", "inline", "--rounds", "2", "--json"))
    assert [r["round_number"] for r in more["rounds"]] == [1, 2]  # it went on


def test_a_devices_line_is_what_the_server_reads(world: Path) -> None:
    line = floe("join", "--device", "clinic.a", "--show-key")
    assert floe("join", "--device", "clinic.a", "--show-key") == line  # one key for ever
    assert tomllib.loads(line)["clinic.a"].startswith("ed25519:")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("simulate",), "name the folder with the devices' examples"),
        (("simulate", "tiny"), "tiny holds no .jsonl file"),
        (("join",), "give this device a name"),
        (("join", "--device", "a"), "name this device's examples"),
        (("report",), "no round of 'default' was held here yet"),
        (("server", "--address", "clinic.example:1"), "updates would travel in the open"),
        (("simulate", "clients", "--name", "../x"), "federated.name must be named by"),
    ],
)
def test_what_is_missing_is_said(world: Path, arguments: tuple[str, ...], says: str) -> None:
    from floe.core.errors import FloeError

    with pytest.raises(FloeError) as error:
        floe(*arguments)
    assert says in error.value.message


@pytest.mark.parametrize("command", ["simulate", "server", "join", "report"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: floe fed {command}" in floe(command, "--help")
