"""A FLOE_HOME that cannot be used, and keys that are none, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from floe.cli import main


def floe(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floe", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_home_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = floe("pull", "--list", FLOE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert done.stderr.startswith("floe: FLOE_HOME=") and "is not a folder" in done.stderr
    assert done.stderr.count("\n") == 1


def test_doctor_says_that_home_cannot_be_written() -> None:
    done = floe("doctor", "--json", FLOE_HOME="/proc/x")
    line = next(one for one in json.loads(done.stdout) if one["about"] == "FLOE_HOME")
    assert (done.returncode, line["state"]) == (1, "missing")
    assert "/proc/x is missing, and not writable" in line["found"]
    assert "set FLOE_HOME" in line["todo"]


def test_doctor_leaves_nothing_in_home(tmp_path: Path) -> None:
    done = floe("doctor", "--json", FLOE_HOME=str(tmp_path))
    line = next(one for one in json.loads(done.stdout) if one["about"] == "FLOE_HOME")
    assert line["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOE_HOME", "/proc/x")
    monkeypatch.setattr(main, "app", lambda: Path("/proc/x").mkdir())
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("floe: /proc/x cannot be used: ") and "FLOE_HOME must name" in said


def test_other_faults_of_the_system_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "app", lambda: Path("/sys/x/y").read_text())
    with pytest.raises(FileNotFoundError):
        main.main()
    monkeypatch.setenv("FLOE_HOME", "/dev/null")
    with pytest.raises(FileNotFoundError):
        main.main()


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_blank_key_stops_the_start(tmp_path: Path, command: str) -> None:
    done = floe(command, "--port", "0", FLOE_API_KEY=" ", FLOE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "floe: FLOE_API_KEY is blank: set it to a key, or unset it\n"
