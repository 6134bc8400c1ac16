"""The door itself: keys, hosts, addresses, health, figures, and what never shows."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_service import LOCAL, Script, draw, embed, served, service_of

from floe.core.errors import (
    BadAdapter,
    BadConfig,
    Busy,
    CloudFailed,
    FloeError,
    Missing,
    NotFound,
)
from floe.core.request import Request
from floe.core.route import Route, Share
from floe.core.sections import ServeConfig
from floe.core.token import Event
from floe.serving.app import build_app
from floe.serving.body import read_json
from floe.serving.errors import BodyTooSlow, described
from floe.serving.local import warn_if_cut
from floe.serving.service import Embedder, Service

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
KEY = {"authorization": "Bearer secret-key"}


def client_of(service: Service, base_url: str = "http://127.0.0.1:8741") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(service))
    return httpx.AsyncClient(transport=transport, base_url=base_url)


async def test_a_key_is_asked_for_where_there_is_one() -> None:
    async with client_of(service_of(Script(), api_key="secret-key")) as client:
        for headers, text in (
            ({}, "an API key is required"),
            ({"authorization": "Bearer wrong"}, "the API key is wrong"),
            ({"authorization": "Basic secret-key"}, "the API key is wrong"),
            ({"authorization": b"Bearer \xff\xfe"}, "the API key is wrong"),
        ):
            answer = await client.post(CHAT, json=ASK, headers=headers)  # type: ignore[arg-type]
            error = answer.json()["error"]
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert text in error["message"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert (await client.post(CHAT, json=ASK, headers=KEY)).status_code == 200
        for path, status in (
            ("/health", 200),
            ("/ready", 200),
            ("/metrics", 401),
            ("/version", 401),
        ):
            assert (await client.get(path)).status_code == status


def test_a_host_reachable_from_outside_needs_a_key() -> None:
    outside = ServeConfig(host="0.0.0.0")
    with pytest.raises(BadConfig, match="set FLOE_API_KEY first"):
        build_app(service_of(Script(), config=outside))
    build_app(service_of(Script(), config=outside, api_key="k"))
    for host in ("localhost", "::1", "127.0.0.9"):
        build_app(service_of(Script(), config=ServeConfig(host=host)))


def test_a_key_is_not_printed() -> None:
    assert "secret-key" not in repr(service_of(Script(), api_key="secret-key"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8741", 200),
        ("127.0.0.1", 200),
        ("[::1]:8741", 200),
        ("192.168.1.7:8741", 200),
        ("evil.example:8741", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_a_foreign_name_in_the_host_header_is_refused(host: str, status: int) -> None:
    async with client_of(service_of(Script())) as client:
        answer = await client.get("/v1/models", headers={"host": host})
        assert answer.status_code == status
        if status == 403:
            assert "does not name this server" in answer.json()["error"]["message"]
        assert "access-control-allow-origin" not in answer.headers


async def test_with_a_key_any_host_name_will_do() -> None:
    async with client_of(service_of(Script(), api_key="secret-key")) as client:
        headers = KEY | {"host": "box.example"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/nothing", 404, "no such address"),
        ("GET", CHAT, 405, "does not know this method"),
        ("POST", "/health", 405, "does not know this method"),
        ("OPTIONS", CHAT, 405, "does not know this method"),
    ],
)
async def test_addresses_and_methods(method: str, path: str, status: int, text: str) -> None:
    async with client_of(service_of(Script())) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert text in answer.json()["error"]["message"]
        assert answer.headers["x-request-id"].startswith(("req-", "chatcmpl-"))
        assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("headers", "content", "status", "text"),
    [
        ({"content-type": "text/plain"}, b"{}", 415, "content-type must be application/json"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"{}", 415, "uncompres"),
        ({"content-type": "application/json"}, b"\xff", 400, "not valid UTF-8"),
        ({"content-type": "application/json; charset=utf-8"}, b"{", 400, "not valid JSON"),
        ({"content-type": "application/json"}, b" " * 101, 413, "larger than 100 bytes"),
    ],
)
async def test_bodies_refused(
    headers: dict[str, str], content: bytes, status: int, text: str
) -> None:
    config = ServeConfig(max_body_bytes=100)
    async with client_of(service_of(Script(), config=config)) as client:
        for path in (CHAT, "/v1/completions", "/v1/embeddings"):
            answer = await client.post(path, headers=headers, content=content)
            assert answer.status_code == status
            assert text in answer.json()["error"]["message"]
        assert (await client.post(CHAT, json=ASK)).status_code == 200


async def test_a_body_without_an_announced_size_is_bounded_too() -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        for _ in range(30):
            yield b" " * 10

    async with client_of(service_of(Script(), config=ServeConfig(max_body_bytes=100))) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(CHAT, headers=headers, content=parts())
        assert answer.status_code == 413


async def test_a_body_that_never_comes_is_given_up() -> None:
    class Silent:
        headers = httpx.Headers({"content-type": "application/json"})

        async def stream(self) -> AsyncGenerator[bytes, None]:
            raise TimeoutError
            yield b""

    with pytest.raises(BodyTooSlow, match="did not arrive within 30 s"):
        await read_json(Silent(), max_bytes=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotFound("no model of this name", param="model"), 404, "not_found_error"),
        (BadAdapter("wrong base"), 409, "adapter_error"),
        (Busy("queue is full"), 503, "overloaded_error"),
        (Missing("not installed"), 501, "not_installed_error"),
        (CloudFailed("no answer"), 502, "cloud_error"),
        (FloeError("odd"), 500, "internal_error"),
    ],
)
async def test_our_errors_keep_their_class_on_the_way_out(
    error: FloeError, status: int, kind: str
) -> None:
    script = Script(error=error, fail_at=0)
    async with client_of(service_of(script)) as client:
        answer = await client.post(CHAT, json=ASK)
    shown = answer.json()["error"]
    assert (answer.status_code, shown["type"], shown["param"]) == (status, kind, error.param)
    assert shown["message"] == error.message
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


def test_codes() -> None:
    _, shown = described(NotFound("x", param="model"), request_id="r")
    assert shown["error"]["code"] == "model_not_found"  # type: ignore[index]
    _, shown = described(NotFound("x", param="file"), request_id="r")
    assert shown["error"]["code"] is None  # type: ignore[index]


MARK = "MARKERTEXT-42"


@pytest.mark.parametrize("fail_at", [0, 1, 2, None])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_users_text_is_in_no_log_and_no_figure(
    caplog: pytest.LogCaptureFixture, fail_at: int | None, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    error = RuntimeError(f"cannot work on {MARK}")
    script = Script(draws=[draw(MARK.encode())] * 3, verdict=LOCAL, error=error, fail_at=fail_at)
    script.route = Route(shares=(Share(name=MARK, digest="d", weight=1.0),), how="explicit")
    ask = ASK | {"messages": [{"role": "user", "content": MARK}], "stream": stream}
    async with client_of(service_of(script)) as client:
        answer = await client.post(CHAT, json=ask)
        await client.post(CHAT, json=ask | {MARK: 1})
        await client.get(f"/{MARK}")
        page = (await client.get("/metrics")).text
    # starlette's and httpx's debug lines name the address asked for; ours do not
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("floe")]
    assert MARK not in " ".join(logged)
    assert MARK not in page
    if fail_at is not None:
        assert "RuntimeError at scripted_service.py:" in logged[0]
        assert MARK not in answer.text.rpartition('"error"')[2]
        assert answer.headers["x-request-id"] in answer.text.rpartition('"error"')[2]
        assert answer.status_code == (200 if stream and fail_at == 2 else 500)


@pytest.mark.parametrize("stream", [True, False])
async def test_a38_an_answer_that_ends_without_a_result_is_an_error(stream: bool) -> None:
    script = Script(draws=(), ends=False)
    async with client_of(service_of(script)) as client:
        answer = await client.post(CHAT, json=ASK | {"stream": stream})
        assert answer.status_code == 500
        assert "ended without a result" in answer.json()["error"]["message"]


async def test_a38_a_dead_worker_turns_health_and_requests_into_5xx() -> None:
    troubles: list[str | None] = [None]
    service = service_of(Script(), alive=lambda: troubles[0])
    async with client_of(service) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        troubles[0] = "its thread has ended"
        health = await client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "its thread has ended")
        assert (await client.get("/ready")).status_code == 503
        answer = await client.post(CHAT, json=ASK)
        assert answer.status_code == 503
        assert "the engine has stopped: its thread has ended" in answer.json()["error"]["message"]


async def test_ready_is_not_health() -> None:
    async with client_of(service_of(Script(), ready=lambda: "the model is loading")) as client:
        assert (await client.get("/health")).status_code == 200
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "the model is loading")
        answer = await client.post(CHAT, json=ASK)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "not ready: the model is loading" in answer.json()["error"]["message"]


async def test_version_shows_what_it_was_given() -> None:
    async with client_of(service_of(Script())) as client:
        assert (await client.get("/version")).json() == {"floe": "0.1.0", "engine": "scripted"}


async def test_without_an_embedding_model() -> None:
    async with client_of(service_of(Script(), embedder=None)) as client:
        answer = await client.post("/v1/embeddings", json={"model": "words", "input": "a"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_installed_error")
        assert len((await client.get("/v1/models")).json()["data"]) == 4


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        ({"input": "a"}, 'model is required: "words"'),
        ({"model": "words"}, "input is required"),
        ({"model": "words", "input": 5}, "input must be a string or an array"),
        ({"model": "words", "input": []}, "input must be an array of 1 to 2048 elements"),
        ({"model": "words", "input": ["a", 1]}, "input[1] must be a string"),
        ({"model": "words", "input": [[1]]}, "token arrays"),
        ({"model": "words", "input": "a", "encoding_format": "hex"}, "encoding_format must be"),
        ({"model": "words", "input": "a", "dimension": 4}, 'did you mean "dimensions"'),
    ],
)
async def test_what_is_wrong_with_an_embedding(ask: dict[str, Any], text: str) -> None:
    async with client_of(service_of(Script())) as client:
        answer = await client.post("/v1/embeddings", json=ask)
        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


async def test_embedding_does_not_block_the_loop() -> None:
    threads = []

    def slow(text: str) -> Any:
        threads.append(threading.current_thread())
        return embed(text)

    embedder = Embedder(name="words", dimensions=4, embed=slow, count_tokens=len)
    async with client_of(service_of(Script(), embedder=embedder)) as client:
        await client.post("/v1/embeddings", json={"model": "words", "input": "a"})
    assert threads[0] is not threading.current_thread()


async def test_a_figure_that_is_not_a_number_is_an_error_not_a_half_answer() -> None:
    script = Script(draws=(draw(b"a", log_prob=float("nan")),))
    async with client_of(service_of(script)) as client:
        answer = await client.post(CHAT, json=ASK | {"logprobs": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")


async def test_figures() -> None:
    counters = {"adapters_resident": 2.0, "adapter_hits_total": 5.0}
    script = Script()
    async with client_of(service_of(script, counters=lambda: counters)) as client:
        await client.post(CHAT, json=ASK)
        script.verdict = LOCAL
        await client.post(CHAT, json=ASK | {"stream": True})
        await client.post(CHAT, json={})
        await client.get("/v1/models/maths")
        await client.get("/etc/passwd")
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }
    assert samples["floe_requests_total", CHAT, "200"] == 2
    assert samples["floe_requests_total", CHAT, "400"] == 1
    assert samples["floe_requests_total", "/v1/models/{id}", "200"] == 1
    assert samples["floe_requests_total", "other", "404"] == 1
    assert samples["floe_tokens_total", "edge"] == 4
    assert samples["floe_tokens_total", "fused"] == samples["floe_tokens_total", "cloud"] == 2
    assert samples["floe_prompt_tokens_total",] == 14
    assert samples["floe_verdicts_total", "local"] == samples["floe_verdicts_total", "allow"] == 1
    assert samples["floe_adapter_requests_total", "maths"] == 2
    assert samples["floe_first_token_seconds_count",] == 2
    assert samples["floe_token_seconds_count",] == 6
    assert samples["floe_requests_in_flight",] == 0
    assert samples["floe_requests_cancelled_total",] == 0


async def test_a28_resident_and_active_adapters_are_figures_of_their_own() -> None:
    counters = {"adapters_resident": 2.0, "adapters_pinned": 1.0, "adapter_hits_total": 5.0}
    async with client_of(service_of(Script(), counters=lambda: counters)) as client:
        page = (await client.get("/metrics")).text
    assert "# TYPE floe_adapters_resident gauge\nfloe_adapters_resident 2.0" in page
    assert "floe_adapters_pinned 1.0" in page
    assert "# TYPE floe_adapter_hits_total counter\nfloe_adapter_hits_total 5.0" in page


async def test_a_counter_with_an_odd_name_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(service_of(Script(), counters=lambda: {"odd name": 1.0})) as client:
        assert (await client.get("/metrics")).status_code == 500
    assert "ValueError at metrics.py:" in caplog.text


async def test_two_apps_count_apart() -> None:
    async with client_of(service_of(Script())) as one, client_of(service_of(Script())) as other:
        await one.post(CHAT, json=ASK)
        assert 'floe_tokens_total{origin="edge"} 2.0' in (await one.get("/metrics")).text
        assert 'floe_tokens_total{origin="edge"} 0.0' in (await other.get("/metrics")).text


async def test_the_default_length_comes_from_the_configuration() -> None:
    script = Script(reason="length")
    async with client_of(service_of(script, config=ServeConfig(default_max_tokens=1))) as client:
        answer = (await client.post(CHAT, json=ASK)).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_two_streams_with_different_mixes_do_not_touch_each_other() -> None:
    """A19: each answer is asked with its own mix, both running at once."""
    together = threading.Barrier(2, timeout=20)

    async def answer(request: Request) -> AsyncGenerator[Event, None]:
        await asyncio.to_thread(together.wait)
        inner = Script(draws=[draw(f"{request.lora[0].scale} ".encode())] * 3)
        async for event in inner.answer(request):
            yield event

    texts: dict[float, str] = {}
    with served(build_app(service_of(Script(), answer=answer))) as port:

        def ask(scale: float) -> None:
            body = ASK | {"lora": [{"id": "maths", "scale": scale}], "stream": True}
            reply = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body).text
            events = [json.loads(e[6:]) for e in reply.split("\n\n") if e.startswith("data: {")]
            deltas = [e["choices"][0]["delta"].get("content", "") for e in events]
            texts[scale] = "".join(deltas)

        threads = [threading.Thread(target=ask, args=(scale,)) for scale in (0.25, 0.75)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {0.25: "0.25 " * 3, 0.75: "0.75 " * 3}


@pytest.mark.parametrize("fail_at", [0, 2])
async def test_back_pressure_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture, fail_at: int
) -> None:
    caplog.set_level(logging.DEBUG, logger="floe")
    script = Script(error=Busy("all places are taken"), fail_at=fail_at)
    async with client_of(service_of(script)) as client:
        answer = await client.post(CHAT, json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert [r.levelno for r in caplog.records if r.name == "floe.serving"] == [logging.DEBUG]


def test_a_context_that_was_cut_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_if_cut(2048, 2048)
    assert not caplog.records
    warn_if_cut(99_999, 2048)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "model.context_tokens = 99999 was cut to 2048" in record.getMessage()
