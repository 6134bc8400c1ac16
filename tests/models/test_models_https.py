"""Pulling over https: resume, hashes, reuse, refusals."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import namedtuple
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pull_net import FileServer, Refuse

from floe.core.errors import BadRequest, NotFound, PullFailed
from floe.models.https import fetch_https
from floe.models.part import Part
from floe.models.pull import available, ensure, remove
from floe.models.registry import KNOWN, KnownModel, ModelFile
from floe.models.sources import SourceFailed, Web

BODY = os.urandom(700_000)
SHA = hashlib.sha256(BODY).hexdigest()
URL = "https://models.example/tiny.gguf"


def test_pull_checks_stores_and_reports(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    model = ensure(
        URL,
        home=tmp_path,
        sha256=SHA.upper(),
        progress=lambda *at: seen.append(at),
        transport=FileServer(body=BODY),
    )
    assert model.name == "tiny"
    assert model.digest == SHA
    assert model.files["model"] == tmp_path / "models/tiny/tiny.gguf"
    assert model.files["model"].read_bytes() == BODY
    assert seen[-1] == ("tiny.gguf", len(BODY), None)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert not (tmp_path / "models/tiny/.parts").exists()


def test_a_present_model_needs_no_net_and_is_found_by_name(tmp_path: Path) -> None:
    first = ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY))
    assert ensure(URL, home=tmp_path, transport=Refuse()) == first
    assert ensure("tiny", home=tmp_path, transport=Refuse()) == first
    assert available(tmp_path) == [first]


def test_a_present_file_is_not_read_again_while_it_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY))
    monkeypatch.setattr("floe.models.cache.sha256_file", lambda _: pytest.fail("hashed"))
    ensure(URL, home=tmp_path, transport=Refuse())


def test_a_touched_file_is_hashed_and_kept(tmp_path: Path) -> None:
    path = ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY)).files["model"]
    os.utime(path, ns=(1, 1))
    assert ensure(URL, home=tmp_path, transport=Refuse()).digest == SHA


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_changed_file_is_pulled_again(tmp_path: Path, keep_times: bool) -> None:
    path = ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY)).files["model"]
    stat = path.stat()
    path.write_bytes(b"x" * len(BODY))
    if keep_times:  # a flipped bit on the disk: only `verify` can see it
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        ensure(URL, home=tmp_path, transport=Refuse())
    server = FileServer(body=BODY)
    again = ensure(URL, home=tmp_path, verify=keep_times, transport=server)
    assert again.files["model"].read_bytes() == BODY
    assert len(server.asked) == 1


def test_a_lost_record_costs_a_hash_not_a_download(tmp_path: Path) -> None:
    path = ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY)).files["model"]
    (path.parent / "pulled.json").write_text("{")
    assert ensure(URL, home=tmp_path, sha256=SHA, transport=Refuse()).digest == SHA


def test_a_cut_connection_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    server = FileServer(body=BODY, cuts=[300_000, 200_000])
    model = ensure(URL, home=tmp_path, sha256=SHA, transport=server)
    assert model.files["model"].read_bytes() == BODY
    assert server.starts == [None, "bytes=300000-", "bytes=500000-"]
    assert server.asked[1].headers["If-Range"] == '"v1"'


def test_a_failed_pull_keeps_its_bytes_for_the_next(tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match=r"connection lost\); 300000 bytes are kept, pull again"):
        ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY, cuts=[300_000, 0]))
    assert available(tmp_path) == []
    server = FileServer(body=BODY)
    assert ensure(URL, home=tmp_path, sha256=SHA, transport=server).digest == SHA
    assert server.starts == ["bytes=300000-"]


def test_a_new_version_on_the_server_starts_over(tmp_path: Path) -> None:
    with pytest.raises(PullFailed):
        old = FileServer(body=b"o" * 700_000, etag='"v0"', cuts=[300_000, 0])
        ensure(URL, home=tmp_path, sha256=SHA, transport=old)
    assert ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY)).digest == SHA


def test_a_stale_part_without_validator_is_fetched_again_once(tmp_path: Path) -> None:
    with pytest.raises(PullFailed):
        old = FileServer(body=b"o" * 700_000, etag=None, cuts=[300_000, 0])
        ensure(URL, home=tmp_path, sha256=SHA, transport=old)
    server = FileServer(body=BODY, etag=None)
    assert ensure(URL, home=tmp_path, sha256=SHA, transport=server).digest == SHA
    assert server.starts == ["bytes=300000-", None]


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 400_000),
    cuts=st.lists(st.integers(1, 150_000), max_size=4),
    ranges=st.booleans(),
)
def test_any_cuts_give_the_bytes_of_one_uncut_download(
    tmp_path_factory: pytest.TempPathFactory, size: int, cuts: list[int], ranges: bool
) -> None:
    body = (BODY * (size // len(BODY) + 1))[:size]
    part = Part(tmp_path_factory.mktemp("cuts") / "f.part")
    for _ in range(len(cuts) + 1):  # each call may fail; the next goes on
        server = FileServer(body=body, cuts=cuts, ranges=ranges)
        try:
            fetch_https(URL, part, size_bytes=None, report=lambda _: None, transport=server)
            break
        except SourceFailed:
            assert part.path.read_bytes() == body[: part.size_bytes]
    assert part.path.read_bytes() == body


def test_a_complete_part_is_recognised(tmp_path: Path) -> None:
    part = Part(tmp_path / "f.part")
    part.path.write_bytes(BODY)
    server = FileServer(body=BODY)
    fetch_https(URL, part, size_bytes=None, report=lambda _: None, transport=server)
    assert part.path.read_bytes() == BODY
    assert server.starts == [f"bytes={len(BODY)}-"]
    fetch_https(URL, part, size_bytes=len(BODY), report=lambda _: None, transport=Refuse())


def test_a_part_longer_than_the_file_starts_over(tmp_path: Path) -> None:
    part = Part(tmp_path / "f.part")
    part.path.write_bytes(BODY + b"more")
    fetch_https(URL, part, size_bytes=None, report=lambda _: None, transport=FileServer(body=BODY))
    assert part.path.read_bytes() == BODY


def test_the_hash_decides_and_every_source_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {"a.example": b"wrong", "b.example": BODY}

    def answer(request: httpx.Request) -> httpx.Response:
        body = bodies.get(request.url.host)
        return httpx.Response(200, stream=httpx.ByteStream(body)) if body else httpx.Response(404)

    def known(*hosts: str) -> KnownModel:
        sources = tuple(Web(url=f"https://{host}/t.gguf?key=secret") for host in hosts)
        file = ModelFile(
            role="model", file_name="t.gguf", sha256=SHA, size_bytes=len(BODY), sources=sources
        )
        return KnownModel(name="t", description="", licence="none", files=(file,))

    monkeypatch.setitem(KNOWN, "t", known("gone.example", "a.example", "b.example"))
    model = ensure("t", home=tmp_path, transport=httpx.MockTransport(answer))
    assert model.files["model"].read_bytes() == BODY

    remove("t", home=tmp_path)
    monkeypatch.setitem(KNOWN, "t", known("gone.example", "a.example"))
    with pytest.raises(PullFailed) as caught:
        ensure("t", home=tmp_path, transport=httpx.MockTransport(answer))
    wrong = hashlib.sha256(b"wrong").hexdigest()
    assert caught.value.message.splitlines() == [
        "no source gave t.gguf:",
        "  https://gone.example/t.gguf: the server answered 404 Not Found",
        f"  https://a.example/t.gguf: gave a file with sha256 {wrong}, expected {SHA}",
    ]
    assert not (tmp_path / "models/t").exists()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(302, headers={"Location": "http://h.example/x"}), "without https"),
        (httpx.Response(206, headers={"Content-Range": "bytes 5-9/10"}), "another range than"),
        (httpx.Response(500), "the server answered 500"),
        (httpx.Response(302, headers={"Location": URL}), "TooManyRedirects"),
    ],
)
def test_odd_answers_are_refused(tmp_path: Path, response: httpx.Response, message: str) -> None:
    transport = httpx.MockTransport(lambda _: response)
    with pytest.raises(PullFailed, match=message):
        ensure(URL, home=tmp_path, sha256=SHA, transport=transport)


@pytest.mark.parametrize("announced", [True, False])
def test_more_bytes_than_expected_are_not_stored(tmp_path: Path, announced: bool) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        headers = {"Content-Length": str(len(BODY))} if announced else {}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(BODY))

    part = Part(tmp_path / "f.part")
    with pytest.raises(SourceFailed, match="than the 1000 bytes expected"):
        fetch_https(
            URL,
            part,
            size_bytes=1000,
            report=lambda _: None,
            transport=httpx.MockTransport(answer),
        )
    assert part.size_bytes <= 1000


def test_a_key_in_the_headers_stays_with_its_host(tmp_path: Path) -> None:
    seen: dict[str, str | None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.url.host] = request.headers.get("Authorization")
        if request.url.host == "hub.example":
            return httpx.Response(302, headers={"Location": "https://cdn.example/x"})
        return httpx.Response(200, stream=httpx.ByteStream(BODY))

    fetch_https(
        "https://hub.example/x",
        Part(tmp_path / "f.part"),
        size_bytes=None,
        report=lambda _: None,
        headers={"Authorization": "Bearer k"},
        transport=httpx.MockTransport(answer),
    )
    assert seen == {"hub.example": "Bearer k", "cdn.example": None}


def test_a_full_disk_is_found_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 64_500_000))
    with pytest.raises(
        PullFailed, match=r"not enough disk space in .*needs 1 MB .* has 64 MB.*FLOE"
    ):
        ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY))


def test_an_unknown_source_needs_a_hash(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="give the file's hash with --sha256"):
        ensure(URL, home=tmp_path, transport=Refuse())
    with pytest.raises(BadRequest, match="a sha256 has 64 hexadecimal digits"):
        ensure(URL, home=tmp_path, sha256="abc", transport=Refuse())


def test_a_known_name_takes_no_other_hash(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="smollm2-135m-instruct is known with sha256 b179c9"):
        ensure("smollm2-135m-instruct", home=tmp_path, sha256=SHA, transport=Refuse())


def test_unknown_names_suggest_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        NotFound, match=r"no model smollm2-135m; did you mean \"smollm2-135m-instruct\"\?"
    ):
        ensure("smollm2-135m", home=tmp_path)
    with pytest.raises(NotFound, match=r"no model zzz; known: qwen2.5-coder-0.5b-instruct, ramp"):
        ensure("zzz", home=tmp_path)


def test_two_references_with_one_file_name_get_two_folders(tmp_path: Path) -> None:
    other = b"another"
    first = ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY))
    second = ensure(
        "https://other.example/tiny.gguf",
        home=tmp_path,
        sha256=hashlib.sha256(other).hexdigest(),
        transport=FileServer(body=other),
    )
    assert second.name.startswith("tiny-")
    assert first.files["model"].read_bytes() == BODY
    assert [m.name for m in available(tmp_path)] == ["tiny", second.name]


def test_remove_frees_and_forgets(tmp_path: Path) -> None:
    ensure(URL, home=tmp_path, sha256=SHA, transport=FileServer(body=BODY))
    assert remove("tiny", home=tmp_path) >= len(BODY)
    assert available(tmp_path) == []
    with pytest.raises(NotFound, match="no model tiny in"):
        remove("tiny", home=tmp_path)
    with pytest.raises(BadRequest, match="model name is not allowed"):
        remove("../models", home=tmp_path)
