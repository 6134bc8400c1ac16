"""The hub: out of reach within seconds, wrong files not downloaded."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path

import httpx
import pytest

from floe.core.errors import PullFailed
from floe.models import hub
from floe.models.pull import ensure
from floe.models.registry import KNOWN, KnownModel, ModelFile
from floe.models.sources import Hub, Web

BODY = b"weights" * 1000
SHA = hashlib.sha256(BODY).hexdigest()
REF = "hf:owner/repo/m.gguf@v1"


@pytest.fixture(autouse=True)
def own_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    monkeypatch.delenv("HF_TOKEN", raising=False)


class HubServer(httpx.BaseTransport):
    def __init__(self, head: httpx.Response) -> None:
        self.head = head
        self.asked: list[str] = []
        self.keys: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url}")
        self.keys.append(request.headers.get("Authorization"))
        return (
            self.head
            if request.method == "HEAD"
            else httpx.Response(200, stream=httpx.ByteStream(BODY))
        )


def test_a_file_is_probed_then_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "k")
    server = HubServer(httpx.Response(302, headers={"X-Linked-ETag": f'"{SHA}"'}))
    model = ensure(REF, home=tmp_path, sha256=SHA, transport=server)
    assert model.files["model"].read_bytes() == BODY
    url = "https://hub.example/owner/repo/resolve/v1/m.gguf"
    assert server.asked == [f"HEAD {url}", f"GET {url}"]
    assert server.keys == ["Bearer k", "Bearer k"]


def test_huggingface_hub_gives_the_address_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    real = pytest.importorskip("huggingface_hub", reason="the hub extra is not installed")
    monkeypatch.setattr(real, "get_token", lambda: "from-login")
    server = HubServer(httpx.Response(200))
    ensure(REF, home=tmp_path, sha256=SHA, transport=server)
    assert server.asked[0].endswith("/owner/repo/resolve/v1/m.gguf")
    assert server.keys[0] == "Bearer from-login"


def test_a_wrong_file_is_not_downloaded(tmp_path: Path) -> None:
    server = HubServer(httpx.Response(302, headers={"X-Linked-ETag": f'"{"0" * 64}"'}))
    with pytest.raises(PullFailed, match=r"the hub's file has sha256 0000.*expected"):
        ensure(REF, home=tmp_path, sha256=SHA, transport=server)
    assert [a.split()[0] for a in server.asked] == ["HEAD"]


def test_a_renamed_repository_is_followed(tmp_path: Path) -> None:
    class Renamed(HubServer):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            return httpx.Response(200) if "/new/" in str(request.url) else answer

    server = Renamed(httpx.Response(307, headers={"Location": "/new/repo/resolve/v1/m.gguf"}))
    server_get = ensure(
        REF, home=tmp_path, sha256=hashlib.sha256(BODY).hexdigest(), transport=server
    )
    assert server.asked[1] == "HEAD https://hub.example/new/repo/resolve/v1/m.gguf"
    assert server_get.digest == SHA


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "the hub answered 404"), (401, "wants a login .* set HF_TOKEN"), (403, "set HF_TOKEN")],
)
def test_refusals_say_what_to_do(tmp_path: Path, status: int, message: str) -> None:
    with pytest.raises(PullFailed, match=message):
        ensure(REF, home=tmp_path, sha256=SHA, transport=HubServer(httpx.Response(status)))


def test_out_of_reach_is_asked_once_and_the_next_source_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "hub.example":
            raise httpx.ConnectError("no route")
        return httpx.Response(200, stream=httpx.ByteStream(BODY))

    files = tuple(
        ModelFile(
            role=role,
            file_name=role,
            sha256=SHA,
            size_bytes=len(BODY),
            sources=(Hub(repo="o/r", path=role), Web(url=f"https://mirror.example/{role}")),
        )
        for role in ("a", "b")
    )
    model = KnownModel(name="t", description="", licence="none", files=files)
    monkeypatch.setitem(KNOWN, "t", model)
    ensure("t", home=tmp_path, transport=httpx.MockTransport(answer))
    assert asked == ["hub.example", "mirror.example", "mirror.example"]


def test_a_hub_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(hub, "_PROBE_S", 0.01)

    def answer(request: httpx.Request) -> httpx.Response:
        over.wait()
        return httpx.Response(200)

    with pytest.raises(PullFailed, match=r"the hub is out of reach \(no answer within 0 s\)"):
        ensure(REF, home=tmp_path, sha256=SHA, transport=httpx.MockTransport(answer))
    over.set()
