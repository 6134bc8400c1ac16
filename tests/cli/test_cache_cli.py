"""`floe cache` as typed: traces simulated and learned from, and a real server looked at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from floe.adapters.policies import make_policy
from floe.cli import cache
from floe.cli.cache import bytes_of
from floe.cli.client import server_adapters
from floe.core.errors import BadRequest, FloeError, NotFound
from floe.testing.tiny_model import make_tiny_adapter, make_tiny_model

runner = CliRunner()
SIZE = 100


def write_trace(path: Path, *, n: int = 300) -> Path:
    """Ten adapters in a circle: LRU with room for nine never hits."""
    lines = [f"{i}.5,adapter-{i % 10},{SIZE},8.0,default" for i in range(n)]
    path.write_text("\n".join(["time,key,size,load_ms,tenant", *lines]) + "\n")
    return path


def run(*arguments: object) -> Any:
    return runner.invoke(cache.app, [str(a) for a in arguments], catch_exceptions=True)


def test_policies_are_compared_on_a_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.csv")
    done = run("simulate", trace, "--policy", "lru, learned", "--budget", "90%", "--json")
    rows = {row["policy"]: row for row in json.loads(done.stdout)}
    assert rows["lru"] == {
        "policy": "lru", "budget_bytes": 900, "requests": 300, "hits": 0, "misses": 300,
        "hit_rate": 0.0, "cost_ms_per_request": 8.0, "evictions": 291,
    }  # fmt: skip
    assert rows["learned"]["hit_rate"] > 0.5
    table = run("simulate", trace, "--policy", "all", "--budget", 900).stdout.splitlines()
    assert table[0] == "300 requests for 10 adapters of 0.0 MB; budget 0.0 MB (90%)"
    assert table[-1].split()[1:3] == ["0.000", "300"]  # the dearest come last
    assert {line.split()[0] for line in table[2:]} >= {"learned", "gdsf", "sieve", "s3-fifo"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", "absent.csv"), "no trace at absent.csv"),
        (("simulate", "TRACE", "--policy", "lur"), 'did you mean "lru"'),
        (("simulate", "TRACE", "--budget", "many"), "--budget must be bytes"),
        (("simulate", "BAD"), r"line 1: must be time,key,size"),
        (("simulate", "PICKLE"), "is no text"),
        (("fit", "TRACE", "--policy", "lru"), "'lru' learns nothing that could be kept"),
        (("fit",), "no trace at .*usage.csv; let the server write one with serve.usage_log_bytes"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "bad.csv").write_text("1,a,0\n")
    (tmp_path / "p.pkl").write_bytes(b"\x80\x04\xff\xfe")
    paths = {
        "TRACE": write_trace(tmp_path / "t.csv"),
        "BAD": tmp_path / "bad.csv",
        "PICKLE": tmp_path / "p.pkl",
    }
    done = run(*(paths.get(a, a) for a in arguments))
    assert isinstance(done.exception, FloeError)
    assert re.search(said, done.exception.message)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        *(("25%", 250), ("64M", 64_000_000), ("64MB", 64_000_000), ("2Ki", 2048), ("7", 7)),
        ("1.5g", 1_500_000_000),
    ],
)
def test_a_budget_is_a_share_or_bytes(text: str, n_bytes: int) -> None:
    assert bytes_of(text, total_bytes=1000) == n_bytes


@pytest.mark.parametrize("text", ["", "0", "-5", "x", "5 parsecs", "nan", "inf", "5ii", "%"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--budget must be bytes"):
        bytes_of(text, total_bytes=1000)


def test_what_a_log_taught_is_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floe.assemble import open_policy, policy_state

    monkeypatch.setenv("FLOE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "usage.csv", n=40)
    write_trace(tmp_path / "usage.1.csv", n=60)
    done = run("fit")
    assert done.exception is None, done.output
    assert "learned: learned from 100 requests for 10 adapters" in done.stderr
    path = policy_state(tmp_path, "learned")
    fitted = open_policy("learned", home=tmp_path)
    assert fitted.state() != make_policy("learned").state()
    assert json.loads(path.read_bytes()) == json.loads(json.dumps(fitted.state()))
    assert open_policy("lru", home=tmp_path).name == "lru"


@pytest.mark.parametrize("damage", ["{", "[]", '{"policy": "learned", "version": 0}'])
def test_a_kept_state_that_cannot_be_used_stops_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Such as an older version's after an update: it is put aside, and learning starts anew."""
    from floe.assemble import open_policy, policy_state

    path = policy_state(tmp_path, "learned")
    path.parent.mkdir()
    path.write_text(damage)
    assert open_policy("learned", home=tmp_path).state() == make_policy("learned").state()
    assert "learned.json.unused-1" in caplog.text
    assert not path.exists()
    assert path.with_name("learned.json.unused-1").read_text() == damage


def test_what_a_server_learned_is_kept_if_it_can_be_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floe.assemble import keep_policy, open_policy, policy_state
    from floe.evaluation.cache_simulate import simulate
    from floe.evaluation.cache_trace import LoadTimes, read_csv

    times = LoadTimes(bytes_M=(1, 2), load_ms_M=(1.0, 2.0))
    trace = read_csv(write_trace(tmp_path / "t.csv", n=50), load_ms_of=times)
    learner = make_policy("learned")
    simulate(trace, policy=learner, budget_bytes=500)
    keep_policy(learner, home=tmp_path)
    assert open_policy("learned", home=tmp_path).state() == json.loads(json.dumps(learner.state()))
    keep_policy(make_policy("lru"), home=tmp_path)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["learned.json"]
    kept = policy_state(tmp_path, "learned").read_bytes()
    for bad in ({"policy": "learned", "x": float("nan")}, {"policy": "other", "version": 1}):
        caplog.clear()
        monkeypatch.setattr(learner, "state", lambda bad=bad: bad)
        keep_policy(learner, home=tmp_path)
        assert "what the cache policy learned is not kept" in caplog.text
        assert policy_state(tmp_path, "learned").read_bytes() == kept


@pytest.fixture(scope="module")
def server(
    models_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """`floe serve` in its own process: the tiny model, two keys for tenants, an admin key."""
    folder = tmp_path_factory.mktemp("served")
    tiny = make_tiny_model(folder)
    incoming = folder / "incoming"
    for i, name in enumerate(("one", "two")):
        make_tiny_adapter(incoming / name, seed=i, base_model_name_or_path=tiny.gguf.stem)
    config = folder / "floe.toml"
    config.write_text(
        f'[model]\nname = "{tiny.gguf}"\nthreads = 1\ncontext_tokens = 256\n'
        f'[adapters]\nfolder = "{folder / "store"}"\nshipped = false\n'
        '[privacy]\nner = "off"\nledger = false\n'
        f'[serve]\nadapter_folder = "{incoming}"\n'
        '[tenants.ward]\nadapters = ["two"]\n'
    )
    keys = {"FLOE_API_KEY": "own", "FLOE_ADMIN_KEY": "admin", "FLOE_API_KEY_WARD": "ward"}
    command = [sys.executable, "-m", "floe", "serve", "--config", str(config), "--port", "0"]
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stderr=output,
            stdout=output,
            env={**os.environ, **keys, "FLOE_HOME": str(models_home)},
        )
    try:
        yield _announced(process, log), models_home
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (0, 130), log.read_text()


def _announced(process: subprocess.Popen[bytes], log: Path) -> str:
    import time

    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := re.search(r"serving on (http://\S+)/v1", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def post(url: str, path: str, key: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(url + path, json=body, headers=headers, timeout=60)


def test_a_running_server_from_load_to_unload(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server
    for name in ("one", "two"):
        done = post(url, "/v1/load_lora_adapter", "admin", lora_name=name, lora_path=name)
        assert (done.status_code, done.text) == (
            200,
            f"Success: LoRA adapter '{name}' added successfully.",
        )
    ask = {"model": "one", "prompt": "the thing", "max_tokens": 2}
    assert post(url, "/v1/completions", "ward", **ask).status_code == 404
    answer = post(url, "/v1/completions", "own", **ask).json()
    judged = post(url, "/v1/feedback", "own", request_id=answer["id"], thumbs=1)
    assert judged.status_code == 200
    assert post(url, "/v1/feedback", "ward", request_id=answer["id"], thumbs=1).status_code == 404

    monkeypatch.setenv("FLOE_ADMIN_KEY", "admin")
    table = run("status", "--url", url).stdout
    assert re.search(r"^one +memory +ready +0 +0\.\d MB +\d+ +\d+ s  [0-9a-f]{12}$", table, re.M)
    for word in ("hit rate", "reloads a minute", "prefetch", " in 2 adapters; 0 pinned"):
        assert word in table
    found = json.loads(run("status", "--url", url, "--json").stdout)
    assert {row["id"] for row in found["data"]} == {"one", "two"}
    assert found["cache"]["budget_bytes"] == 64_000_000

    monkeypatch.delenv("FLOE_ADMIN_KEY")
    monkeypatch.setenv("FLOE_API_KEY", "ward")
    found = json.loads(run("status", "--url", url, "--json").stdout)
    assert ([row["id"] for row in found["data"]], found["cache"]) == (["two"], None)
    assert "memory   " not in run("status", "--url", url).stdout
    monkeypatch.setenv("FLOE_API_KEY", "wrong")
    assert "the API key is wrong" in str(run("status", "--url", url).exception)

    gone = post(url, "/v1/unload_lora_adapter", "admin", lora_name="one")
    assert gone.text == "Success: LoRA adapter 'one' removed successfully."
    rows = server_adapters(url, "admin")["data"]
    assert [row["id"] for row in rows] == ["two"]


def test_a_tenant_without_a_key_stops_the_start(models_home: Path, tmp_path: Path) -> None:
    (tmp_path / "floe.toml").write_text("[tenants.ward]\n")
    done = subprocess.run(
        [sys.executable, "-m", "floe", "serve", "--config", "floe.toml", "--port", "0"],
        env={**os.environ, "FLOE_HOME": str(models_home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "tenant 'ward' has no key: set FLOE_API_KEY_WARD" in done.stderr


@pytest.mark.parametrize("said", [b"<html>", b'{"data": 5}', b'{"data": [{"id": 1}]}', b"[]"])
def test_a_server_that_is_no_floe_is_said(said: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as http:
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(FloeError, match="is no list of adapters: is this a Floe server"):
            server_adapters(f"http://127.0.0.1:{http.server_port}", None)
        http.shutdown()


def test_no_server_and_no_address_are_told_apart() -> None:
    with pytest.raises(NotFound, match=r"no Floe server at http://127\.0\.0\.1:9"):
        server_adapters("http://127.0.0.1:9", None)
    with pytest.raises(FloeError, match="is not a URL"):
        server_adapters("http://127.0.0.1:port", None)
