"""The logit service, in process and over a real socket."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Sequence

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.cloud.wire import LogitRequest, LogitResponse, dump_request, parse_response
from floe.core.errors import Busy, FloeError
from floe.core.request import Message
from floe.serving.logits_app import Scorer, build_logits_app
from floe.testing.live_server import live
from floe.testing.scripted_engine import ScriptedEngine

PROMPT = "Zebedee asks: snow?"


def encode_with(engine: ScriptedEngine):
    def encode(messages: Sequence[Message], prompt: str | None) -> list[int]:
        return engine.tokenize(prompt if prompt is not None else messages[-1].content)

    return encode


def client_of(engine: ScriptedEngine, key: str | None = None, **options: int) -> httpx.AsyncClient:
    app = build_logits_app(engine=engine, encode=encode_with(engine), key=key, **options)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://cloud")


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(name="big")


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine) as client:
        yield client
    assert engine.open_sessions == 0


async def ask(client: httpx.AsyncClient, **fields: object) -> LogitResponse:
    request = LogitRequest(**{"prompt": PROMPT, "top_k": 5, **fields})  # type: ignore[arg-type]
    response = await client.post("/v1/logits", content=dump_request(request))
    assert response.status_code == 200, response.text
    return parse_response(response.content)


def slow_scores(engine: ScriptedEngine, answer: bytes, draft: bytes, k: int):
    """Offsets and candidates by one engine call for each boundary of the whole text."""
    text = answer + draft
    while True:
        try:
            text.decode()
            break
        except UnicodeDecodeError:
            text = text[:-1]
    prompt, ids = engine.tokenize(PROMPT), engine.tokenize(text.decode())
    out, offset = [], 0
    for n in range(len(ids) + 1):
        if n:
            offset += len(engine.token_bytes(ids[n - 1]))
        if offset >= len(answer):
            log_probs_V = engine.log_probs(prompt + ids[:n])
            best = sorted(range(len(log_probs_V)), key=lambda i: (-log_probs_V[i], i))[:k]
            rows = [(engine.token_bytes(i), log_probs_V[i], i in engine.info.eos_ids) for i in best]
            out.append((offset, [r for r in rows if r[0] or r[2]]))
    return out


@given(st.text(max_size=12), st.text(max_size=12), st.integers(0, 3), st.integers(1, 271))
@settings(max_examples=60, deadline=None)
def test_b47_scores_equal_one_call_for_each_boundary(
    answer: str, draft: str, cut: int, k: int
) -> None:
    engine = ScriptedEngine()
    raw_answer, raw_draft = answer.encode(), draft.encode()
    raw_draft = raw_draft[: len(raw_draft) - cut] if cut < len(raw_draft) else b""
    request = LogitRequest(prompt=PROMPT, answer=raw_answer, draft=raw_draft, top_k=k)
    response = asyncio.run(Scorer(engine=engine, encode=encode_with(engine)).score(request))
    wanted = slow_scores(engine, raw_answer, raw_draft, k)
    assert [p.offset_bytes for p in response.positions] == [offset for offset, _ in wanted]
    for position, (_, candidates) in zip(response.positions, wanted, strict=True):
        assert [c.log_prob for c in position.candidates] == [p for _, p, _ in candidates]
        assert {(c.data, c.end) for c in position.candidates[:-1]} <= {
            (d, e) for d, _, e in candidates
        }
    assert engine.open_sessions == 0


async def test_a_growing_answer_costs_only_its_new_tokens(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    text = "the snow is falling"
    first = await ask(client)
    assert first.cached_tokens == 0 and first.model == "big"
    assert first.tokenizer_digest == engine.info.tokenizer_digest
    for n in range(1, len(text)):
        fed = engine.tokens_fed
        response = await ask(client, answer=text[:n].encode())
        assert response.positions[0].offset_bytes == n
        assert engine.tokens_fed - fed <= 4


async def test_a_place_inside_a_character_or_a_token_gets_no_advice(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    half = "雪".encode()[:2]
    assert (await ask(client, answer=half)).positions == ()
    assert (await ask(client, answer=b"a\xff", draft=b"b")).positions == ()
    assert engine.sessions_opened == 0
    inside = await ask(client, answer=b"th", draft=b"e end")  # "the" is one token
    assert [p.offset_bytes for p in inside.positions] == [3, 4, 5, 6, 7]
    broken_draft = await ask(client, answer=b"a", draft=b"b" + half)
    assert [p.offset_bytes for p in broken_draft.positions] == [1, 2]


async def test_a_tokenizer_that_does_not_give_the_bytes_back_gives_no_advice() -> None:
    class Trims(ScriptedEngine):
        def tokenize(self, text: str, *, special: bool = False) -> list[int]:
            return super().tokenize(text.strip(), special=special)

    async with client_of(Trims()) as client:
        assert (await ask(client, answer=b"snow ")).positions == ()
        assert [p.offset_bytes for p in (await ask(client, answer=b"snow")).positions] == [4]


@pytest.mark.parametrize(
    ("given", "status"),
    [({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"authorization": "Bearer ä"}, 401),
     ({"authorization": "Bearer k-1"}, 200)],
)  # fmt: skip
async def test_the_key_guards_scores_but_not_health(given: dict[str, str], status: int) -> None:
    async with client_of(ScriptedEngine(), key="k-1") as client:
        raw = {k: v.encode("latin-1") for k, v in given.items()}
        response = await client.post(
            "/v1/logits", content=dump_request(LogitRequest(prompt="x")), headers=raw
        )
        assert response.status_code == status
        if status == 401:
            error = response.json()["error"]
            assert error["type"] == "authentication_error"
            assert "missing or wrong key; send it as Authorization" in error["message"]
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).json()["model"] == "scripted"


async def test_errors_have_openais_shape(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    async def error(body: bytes) -> tuple[int, dict]:
        response = await client.post("/v1/logits", content=body)
        content = response.json()["error"]
        assert content.keys() == {"message", "type", "param", "code"}
        assert "Zebedee" not in content["message"]
        return response.status_code, content

    good = {"version": 1, "prompt": PROMPT}
    status, content = await error(b"{Zebedee")
    assert (status, content["message"]) == (400, "the body is not valid JSON")
    status, content = await error(json.dumps({**good, "top_k": 0}).encode())
    assert (status, content["param"]) == (400, "top_k")
    status, content = await error(json.dumps({**good, "prompt": ""}).encode())
    assert (status, content["message"]) == (400, "the prompt is empty")
    draft = base64.b64encode(b"x" * 600).decode()
    status, content = await error(json.dumps({**good, "draft": draft}).encode())
    assert (status, content["message"]) == (400, "draft has more than 512 tokens")
    status, content = await error(json.dumps({**good, "prompt": "y" * 5000}).encode())
    assert status == 400 and "does not fit the context" in content["message"]
    engine.refuse_sessions(Busy("no room"))
    status, content = await error(json.dumps(good).encode())
    assert (status, content["type"]) == (503, "overloaded_error")
    engine.heal()
    engine.fail_after(0, FloeError("the engine failed"))
    status, content = await error(json.dumps(good).encode())
    assert (status, content["type"]) == (500, "internal_error")
    assert (await client.get("/v1/logits")).status_code == 405
    assert (await client.get("/nothing")).json()["error"]["message"] == "Not Found"


async def test_a_body_above_the_limit_is_refused_while_it_comes() -> None:
    async with client_of(ScriptedEngine(), max_body_bytes=100) as client:
        response = await client.post("/v1/logits", content=b"x" * 101)
        assert response.status_code == 413
        assert response.json()["error"]["message"] == "the body is above 100 bytes"


async def test_a_bug_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(ScriptedEngine):
        def token_bytes(self, token: int) -> bytes:
            raise ZeroDivisionError("Zebedee")

    async with client_of(Buggy()) as client:
        response = await client.post(
            "/v1/logits", content=dump_request(LogitRequest(prompt=PROMPT, answer=b"a"))
        )
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "an error inside the logit service; see its log"
    assert "logits: ZeroDivisionError" in caplog.text and "Zebedee" not in caplog.text


async def test_logs_hold_ids_and_sizes_only(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="floe")
    body = dump_request(LogitRequest(prompt=PROMPT, answer=b"Zebedee says", draft=b" yes"))
    response = await client.post("/v1/logits", content=body, headers={"x-request-id": "r-7"})
    assert response.headers["x-request-id"] == "r-7"
    assert "logits r-7: answer 12 bytes, draft 4 bytes" in caplog.text
    assert "Zebedee" not in caplog.text
    response = await client.post("/v1/logits", content=body, headers={"x-request-id": "a b\tc"})
    assert len(response.headers["x-request-id"]) == 32


async def test_a61_a_client_that_leaves_ends_the_work_and_frees_the_session() -> None:
    engine = ScriptedEngine()
    app = build_logits_app(engine=engine, encode=encode_with(engine), key=None)
    engine.pause()
    submitted, closed = asyncio.Event(), asyncio.Event()
    loop, submit, close = asyncio.get_running_loop(), engine._submit, engine._closed_session

    def watched_submit(*args: object) -> None:
        submit(*args)  # type: ignore[arg-type]
        loop.call_soon_threadsafe(submitted.set)

    def watched_close(*args: object) -> None:
        close(*args)  # type: ignore[arg-type]
        loop.call_soon_threadsafe(closed.set)

    engine._submit, engine._closed_session = watched_submit, watched_close  # type: ignore[method-assign]
    body = dump_request(LogitRequest(prompt=PROMPT))
    with live(app) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            asked = asyncio.ensure_future(client.post(f"{server.url}/v1/logits", content=body))
            await asyncio.wait_for(submitted.wait(), 10)
            assert engine.open_sessions == 1
            asked.cancel()
            await asyncio.wait({asked})
            await asyncio.wait_for(closed.wait(), 10)
    assert engine.open_sessions == 0
    pending = [future for future, _ in engine._pending]
    assert pending and all(future.cancelled() for future in pending)


async def test_a_session_that_comes_after_the_client_left_is_given_back() -> None:
    class Slow(ScriptedEngine):
        def session(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            self.waiting = type(super().session(*args, **kwargs))()
            self.later = super().session(*args, **kwargs)
            return self.waiting

    engine = Slow()
    scorer = Scorer(engine=engine, encode=encode_with(engine))
    work = asyncio.ensure_future(scorer.score(LogitRequest(prompt=PROMPT)))
    await asyncio.sleep(0)
    assert engine.waiting.set_running_or_notify_cancel()  # too late to be cancelled in the queue
    work.cancel()
    await asyncio.wait({work})
    before = engine.open_sessions
    engine.waiting.set_result(engine.later.result())
    assert engine.open_sessions == before - 1


async def test_impossible_tokens_are_not_sent() -> None:
    class Masked(ScriptedEngine):
        def log_probs(self, tokens, adapters=()):  # type: ignore[no-untyped-def]
            log_probs_V = super().log_probs(tokens, adapters)
            log_probs_V[3:] = -np.inf
            return log_probs_V

    async with client_of(Masked()) as client:
        response = await ask(client, top_k=50)
    assert sorted(c.data for c in response.positions[0].candidates) == [b"\0", b"\1", b"\2"]
