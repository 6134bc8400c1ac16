"""`floe up`: the first thing a user runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def floe(home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floe", *arguments],
        env={**os.environ, "FLOE_HOME": str(home)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def report(own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = floe(own_home, tmp_path_factory.mktemp("up"), "up", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Fatal" not in done.stderr and "Traceback" not in done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_everything_holds(report: dict[str, Any]) -> None:
    assert report["ok"] is True
    assert report["failed"] == []
    assert report["edge_model"] == "smollm2-135m-instruct"
    assert report["cloud_model"] == "qwen2.5-coder-0.5b-instruct"
    assert {"maths", "code", "medicine", "law", "finance"} <= set(report["adapters"])


def test_private_text_never_left(report: dict[str, Any]) -> None:
    assert report["private"]["left_device"] is False
    assert report["private"]["source"] == "edge"
    assert report["private"]["verdict"] == "local"


def test_maths_was_fused_under_an_adapter(report: dict[str, Any]) -> None:
    assert report["fused"]["cloud_tokens"] > 0
    assert report["fused"]["left_device"] is True
    assert report["fused"]["adapters"] == ["maths"]


def test_plain_was_answered(report: dict[str, Any]) -> None:
    assert report["plain"]["tokens"] > 0
    assert report["plain"]["answer"].strip()


def test_without_a_cloud_it_serves_and_says_so(own_home: Path, tmp_path: Path) -> None:
    done = floe(own_home, tmp_path, "up", "--check", "--cloud-model", "none")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert data["cloud_model"] is None
    assert data["failed"] == ["the cloud took part in the maths"]
    assert data["plain"]["source"] == "edge"
    assert "from the edge only" in done.stderr


def test_a_stand_in_that_cannot_be_fetched_is_said_aloud(own_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    for name in ("smollm2-135m-instruct", "wordllama-256", "rampart-ner"):
        (home / "models" / name).symlink_to(own_home / "models" / name)
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "floe", "up", "--check"],
        env={**os.environ, **offline, "FLOE_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    data = json.loads(done.stdout)
    assert data["cloud_model"] is None
    assert data["failed"] == ["the cloud took part in the maths"]
    assert "no stand-in for the cloud, serving from the edge only" in done.stderr
    assert "qwen2.5-coder-0.5b-instruct" in done.stderr


def test_the_stand_in_ends_with_its_parent(own_home: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "floe", "up", "--port", "0"],
        env={**os.environ, "FLOE_HOME": str(own_home)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "serving on http" in line:
            break
    children = _children(process.pid)
    assert children, "there is no stand-in process"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in children):
        assert time.monotonic() < deadline, "the stand-in outlived its parent"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
