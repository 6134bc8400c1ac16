"""Files are whole or not there, and names stay inside their folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floe.core.errors import BadRequest
from floe.core.files import atomic_write, safe_name, sha256_file

KILLED_MIDWAY = """
import os, signal, sys
from pathlib import Path
from floe.core.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"new" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_kill_9_midway_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED_MIDWAY, str(path)], env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"newer")
    assert path.read_bytes() == b"newer"


def test_sha256_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_file(path) == digest


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "a\\b", "", ".hidden", "a..b", "x" * 65])
def test_a29_names_that_could_escape_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="adapter name is not allowed: use letters"):
        safe_name(name, what="adapter")


@pytest.mark.parametrize("name", ["maths", "SmolLM2-135M-Instruct.Q4_1", "a_1"])
def test_ordinary_names_pass(name: str) -> None:
    assert safe_name(name, what="adapter") == name
