"""Files on this machine, killed pulls, and two pulls at once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pull_net import FileServer, Refuse

from floe.core.errors import BadRequest, NotFound, PullFailed
from floe.models.pull import available, ensure

BODY = bytes(range(256)) * 4000
SHA = hashlib.sha256(BODY).hexdigest()
URL = "https://models.example/tiny.gguf"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "My model..v1.gguf"
    path.write_bytes(BODY)
    return path


def test_a_local_file_is_linked_under_a_safe_name(tmp_path: Path, gguf: Path) -> None:
    model = ensure(str(gguf), home=tmp_path / "home")
    assert model.name == "my-model.v1"
    assert model.digest == SHA
    assert model.files["model"].name == "My-model.v1.gguf"
    assert model.files["model"].samefile(gguf)
    assert available(tmp_path / "home") == [model]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_may_never_end_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BadRequest, match="is no regular file"):
        ensure(str(path), home=tmp_path / "home")


def test_a_file_on_another_disk_is_copied(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    model = ensure(str(gguf), home=tmp_path / "home")
    assert not model.files["model"].samefile(gguf)
    monkeypatch.setattr("floe.models.pull.sha256_file", lambda _: pytest.fail("hashed"))
    assert ensure(str(gguf), home=tmp_path / "home") == model


def test_a_changed_local_file_is_taken_again_and_a_gone_one_is_kept(
    tmp_path: Path, gguf: Path
) -> None:
    home = tmp_path / "home"
    ensure(str(gguf), home=home)
    gguf.unlink()
    assert ensure(str(gguf), home=home).files["model"].read_bytes() == BODY
    gguf.write_bytes(b"new")
    assert ensure(str(gguf), home=home).files["model"].read_bytes() == b"new"


def test_local_refusals(tmp_path: Path, gguf: Path) -> None:
    with pytest.raises(NotFound, match=r"no file .*/absent.gguf"):
        ensure(str(tmp_path / "absent.gguf"), home=tmp_path)
    with pytest.raises(BadRequest, match="is a folder; name a GGUF file in it"):
        ensure(str(tmp_path), home=tmp_path / "home")
    with pytest.raises(PullFailed, match=f"gave a file with sha256 {SHA}, expected 0000"):
        ensure(str(gguf), home=tmp_path / "home", sha256="0" * 64)
    assert gguf.read_bytes() == BODY
    assert [p.name for p in (tmp_path / "home/models").iterdir()] == [".locks"]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        ensure("/etc/passwd", home=tmp_path)
    assert caught.value.message == (
        "/etc/passwd is no model file; expected one that ends in .gguf, .safetensors, .onnx, .json"
    )
    for name in ("a.safetensors", "b.onnx", "c.JSON"):
        (tmp_path / name).write_bytes(b"x")
        assert ensure(str(tmp_path / name), home=tmp_path / "home").files["model"].is_file()


@pytest.mark.parametrize(
    ("options", "said"), [([], f"sha256 {SHA} (hashed)"), (["--sha256", SHA], f"{SHA} matches")]
)
def test_a_file_without_an_expected_hash_is_only_said_to_be_hashed(
    tmp_path: Path, gguf: Path, options: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "floe", "pull", str(gguf), *options]
    env = {**os.environ, "FLOE_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert said in done.stderr


_CHILD = """
import sys
from pathlib import Path
import httpx
from floe.models.pull import ensure
from pull_net import CutStream
body = bytes(range(256)) * 4000

def pause():
    print("half", flush=True)
    sys.stdin.readline()

class Slow(httpx.BaseTransport):
    def handle_request(self, request):
        stream = CutStream(body[:524288], cut=False, then=pause)
        rest = CutStream(body[524288:], cut=False)
        class Both(httpx.SyncByteStream):
            def __iter__(self):
                yield from stream
                yield from rest
        return httpx.Response(200, headers={"Content-Length": str(len(body))}, stream=Both())

model = ensure(sys.argv[1], home=Path(sys.argv[2]), sha256=sys.argv[3], transport=Slow())
print("done", flush=True)
"""


def start_pull(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, URL, str(home), SHA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_killed_pull_goes_on_where_it_was(tmp_path: Path) -> None:
    with start_pull(tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    assert available(tmp_path) == []
    server = FileServer(body=BODY)
    model = ensure(URL, home=tmp_path, sha256=SHA, transport=server)
    assert model.files["model"].read_bytes() == BODY
    (asked,) = server.starts
    assert asked is not None
    assert int(asked.removeprefix("bytes=").removesuffix("-")) >= 262_144


def test_a_second_pull_waits_for_the_first_and_uses_its_file(tmp_path: Path) -> None:
    waiting = (
        "import sys; from pathlib import Path; from floe.models.pull import ensure;"
        "from pull_net import Refuse; print('asks', flush=True);"
        "print(ensure(sys.argv[1], home=Path(sys.argv[2]), sha256=sys.argv[3],"
        " transport=Refuse()).digest, flush=True)"
    )
    with start_pull(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "half\n"
        with subprocess.Popen(
            [sys.executable, "-c", waiting, URL, str(tmp_path), SHA],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "asks\n"
            first.stdin.write("go on\n")
            first.stdin.flush()
            assert first.stdout.readline() == "done\n"
            assert second.stdout.readline() == f"{SHA}\n"
    assert ensure(URL, home=tmp_path, transport=Refuse()).digest == SHA
