"""Shapes and faults of the two clients, mostly without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from floe.cloud.client import Endpoint, record_nothing
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.cloud.wire import parse_request
from floe.core.advice import Advice, Question
from floe.core.errors import BadConfig, CloudFailed
from floe.core.request import Request
from floe.testing.cloud_conformance import REQUEST, SECRET
from floe.testing.live_server import live
from floe.testing.openai_upstream import Faults, build_openai_upstream
from floe.testing.scripted_engine import ScriptedEngine

Handler = Callable[[httpx.Request], httpx.Response]


def logit_cloud(handler: Handler, **options: object) -> LogitCloud:
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    options = {"url": "https://cloud.example", "on_send": record_nothing, **options}
    return LogitCloud(client=client, **options)  # type: ignore[arg-type]


def at(found: tuple[Advice, ...], answer: bytes) -> Advice | None:
    return next((a for a in found if a.offset_bytes == len(answer)), None)


async def ask(cloud: LogitCloud | OpenAICloud, answer: bytes = b"") -> Advice | None:
    async with cloud.open(REQUEST) as advise:
        return at(await advise(Question(answer=answer)), answer)


def endpoint(url: str, key: str | None = None) -> Endpoint:
    return Endpoint(
        url=url, key=key, connect_timeout_ms=1, read_timeout_s=1, on_send=record_nothing
    )


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://192.168.0.9:80", "would send text in the clear to another machine: use https"),
        ("http://cloud.example", "would send text in the clear to another machine: use https"),
        ("http://localhost.evil.example", "would send text in the clear"),
        ("ftp://127.0.0.1", "must begin with https:// or http://"),
        ("127.0.0.1:80", "cloud.url"),
        ("https://", "must begin with https:// or http://"),
        ("https://user:pw@cloud.example", "an address only; give the key as FLOE_CLOUD_KEY"),
        ("https://cloud.example/?key=1", "an address only; give the key as FLOE_CLOUD_KEY"),
        ("https://cloud.example:port", "cloud.url is not a URL"),
    ],
)
def test_text_goes_in_the_clear_to_this_machine_only(url: str, text: str) -> None:
    with pytest.raises(BadConfig) as caught:
        endpoint(url)
    assert text in caught.value.message and caught.value.param == "cloud.url"


async def test_good_addresses_and_bad_keys() -> None:
    for url in ("http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8", "http://localhost:1"):
        await endpoint(url).close()
    await endpoint("https://cloud.example/v1/").close()
    for key in ("kä", "k\n"):
        with pytest.raises(BadConfig, match="FLOE_CLOUD_KEY holds characters that no key has"):
            endpoint("https://cloud.example", key)


async def test_what_the_logit_client_sends() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        body = {"version": 1, "model": "m", "tokenizer_digest": "d", "positions": []}
        return httpx.Response(200, json=body)

    cloud = logit_cloud(handler, url="https://cloud.example:444/base/", key="k", top_k=7)
    assert cloud.name == "cloud.example:444"
    assert await ask(cloud, b"\xff so far") is None
    (sent,) = seen
    assert str(sent.url) == "https://cloud.example:444/base/v1/logits"
    assert sent.headers["authorization"] == "Bearer k"
    assert sent.headers["x-request-id"] == REQUEST.id
    parsed = parse_request(sent.content)
    assert parsed.messages == REQUEST.messages and parsed.top_k == 7
    assert parsed.answer == b"\xff so far"
    async with cloud.open(Request(id="p", prompt="plain")) as advise:
        await advise(Question(answer=b""))
    assert parse_request(seen[1].content).prompt == "plain"
    await cloud.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda r: httpx.Response(401), "status 401; check FLOE_CLOUD_KEY"),
        (lambda r: httpx.Response(404), "status 404; check cloud.url and cloud.kind"),
        (lambda r: httpx.Response(429), "status 429; it is asked too often"),
        (lambda r: httpx.Response(500, text=SECRET), "the cloud answered with status 500"),
        (lambda r: httpx.Response(302, headers={"location": "https://x"}), "status 302"),
        (lambda r: httpx.Response(200, text="<html>"), "malformed: the body is not valid JSON"),
        (lambda r: httpx.Response(200, json={"error": SECRET}), "malformed: unknown field"),
        (lambda r: httpx.Response(200, content=b"x" * 9_000_000), "is above 8000000 bytes"),
        (httpx.ConnectError(SECRET), "no answer from the cloud at cloud.example: ConnectError"),
        (httpx.ReadTimeout(SECRET), "no answer from the cloud at cloud.example: ReadTimeout"),
        (httpx.RemoteProtocolError(SECRET), "cloud.example: RemoteProtocolError"),
    ],
)
async def test_whatever_goes_wrong_is_cloud_failed_without_the_users_words(
    answer: object, text: str
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer(request)  # type: ignore[operator]

    cloud = logit_cloud(handler)
    with pytest.raises(CloudFailed) as caught:
        await ask(cloud)
    assert text in caught.value.message and SECRET not in caught.value.message
    await cloud.close()


def token(text: str, log_prob: float = -0.1, *, top: object = (), **extra: object) -> dict:
    spoken = {"token": text, "logprob": log_prob, "bytes": list(text.encode()), **extra}
    return {"delta": {"content": text}, "logprobs": {"content": [{**spoken, "top_logprobs": top}]}}


def event(choice: dict) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


class Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces; an exception among them is raised at its turn."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def openai_cloud(*pieces: bytes | Exception, sent: list | None = None) -> OpenAICloud:
    def handler(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request)
        return httpx.Response(200, stream=Pieces(*pieces))

    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return OpenAICloud(
        url="https://api.example/v1", model="m", on_send=record_nothing, client=client
    )


async def advice_at(cloud: OpenAICloud, *answers: bytes) -> list[Advice | None]:
    async with cloud.open(REQUEST) as advise:
        out = [at(await advise(Question(answer=a)), a) for a in answers]
    await cloud.close()
    return out


STOP = event({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n"


async def test_what_the_openai_client_sends() -> None:
    sent: list[httpx.Request] = []
    await advice_at(openai_cloud(event(token("Hi")), STOP, sent=sent), b"", b"Hi", b"Hi")
    (request,) = sent
    assert str(request.url) == "https://api.example/v1/chat/completions"
    body = json.loads(request.content)
    assert body["messages"] == [{"role": "user", "content": REQUEST.messages[0].content}]
    assert (body["temperature"], body["stream"], body["logprobs"]) == (0, True, True)
    assert (body["top_logprobs"], body["max_tokens"], body["model"]) == (20, 200, "m")


async def test_places_are_counted_in_bytes_and_the_end_is_certain() -> None:
    snow = {"token": "?", "logprob": -3.0, "bytes": [0x41]}
    pieces = [event(token("雪", -0.5, top=[snow])), event(token("a")), STOP]
    whole = b"".join(pieces)
    split = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    at = await advice_at(
        openai_cloud(*split), b"", "雪".encode()[:1], "雪".encode(), "雪a".encode()
    )
    assert at[0] is not None and at[2] is not None and at[3] is not None
    assert [(c.data, c.log_prob) for c in at[0].candidates] == [("雪".encode(), -0.5), (b"A", -3.0)]
    assert at[1] is None
    assert at[2].offset_bytes == 3 and at[2].candidates[0].data == b"a"
    assert at[3].offset_bytes == 4
    assert [(c.end, c.log_prob) for c in at[3].candidates] == [(True, 0.0)]


async def test_an_end_token_among_the_candidates_is_an_end() -> None:
    others = [
        {"token": "<|im_end|>", "logprob": -0.7, "bytes": list(b"<|im_end|>")},
        {"token": "x", "logprob": -1.0, "bytes": None},
        {"token": "", "logprob": -2.0, "bytes": []},
    ]
    last = token("<|im_end|>", -0.2, top=[{**others[0], "logprob": -0.2}])
    at = await advice_at(
        openai_cloud(event(token("Hi", -1.5, top=others)), event(last), STOP), b"", b"Hi"
    )
    assert at[0] is not None and at[1] is not None
    assert [(c.data, c.end) for c in at[0].candidates] == [
        (b"", True),
        (b"x", False),
        (b"Hi", False),
    ]
    assert [(c.end, c.log_prob) for c in at[1].candidates] == [(True, -0.2)]


async def test_text_that_left_the_clouds_own_gets_no_advice() -> None:
    """A guess of the asker's that is undone costs nothing; a final answer ends the stream."""
    cloud = openai_cloud(event(token("Hi")), event(token(" you")), STOP)
    guess, undone = await advice_at(cloud, b"Ho", b"Hi")
    assert guess is None and undone is not None
    cloud = openai_cloud(event(token("Hi")), event(token(" you")), STOP)
    async with cloud.open(REQUEST) as advise:
        assert await advise(Question(answer=b"Ho", ahead_bytes=9)) == ()
        assert await advise(Question(answer=b"Ho, ", ahead_bytes=9)) == ()
    await cloud.close()
    assert cloud.counters().restarted == 0


async def test_an_answer_far_from_the_clouds_text_ends_the_stream() -> None:
    """Such a question cannot be a draft that may be undone, and the rest costs money."""
    ended = False

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield event(token("Hi"))
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            nonlocal ended
            ended = True

    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda r: httpx.Response(200, stream=Endless()))
    )
    cloud = OpenAICloud(url="https://a.example", model="m", on_send=record_nothing, client=client)
    async with cloud.open(REQUEST) as advise:
        assert await advise(Question(answer=b""))
        for n_bytes, is_over in [(400, False), (600, True)]:
            assert await advise(Question(answer=b"Ho" + b"o" * n_bytes)) == ()
            for _ in range(5):
                await asyncio.sleep(0)
            assert ended is is_over
    await cloud.close()


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floe.cloud.openai_stream._MAX_ANSWER_BYTES", 6)
    cloud = openai_cloud(*[event(token("Hi"))] * 9)
    async with cloud.open(REQUEST) as advise:
        with pytest.raises(CloudFailed, match="the cloud's answer is above 6 bytes"):
            await advise(Question(answer=b"HiHiHiHi"))
    await cloud.close()
    cloud = openai_cloud(event(token("Hi")), event({"delta": {}, "finish_reason": "length"}))
    assert (await advice_at(cloud, b"Hi", b""))[0] is None


async def test_a_prompt_without_messages_sends_nothing() -> None:
    sent: list[httpx.Request] = []
    cloud = openai_cloud(STOP, sent=sent)
    async with cloud.open(Request(id="p", prompt="continue this")) as advise:
        assert await advise(Question(answer=b"")) == ()
    await cloud.close()
    assert sent == []


@pytest.mark.parametrize("broken", [
    b'data: {"choices": [{"delta": {"conte\n\n',
    b"data: 7\n\n",
    b'data: {"error": {"message": "overloaded"}}\n\n',
    event(token("x", float("nan"))),
    event(token("x", bytes=[999])),
    event(token("\ufffd", bytes=None)),
    event({"delta": {}, "logprobs": {"content": [{"token": 3, "logprob": -1}]}}),
])  # fmt: skip
async def test_b40_a_broken_event_is_skipped_and_counted(broken: bytes) -> None:
    cloud = openai_cloud(event(token("Hi")), broken, event(token(" you")), STOP)
    at = await advice_at(cloud, b"", b"Hi", b"Hi you")
    assert all(at) and cloud.counters().skipped_events == 1


async def test_events_without_tokens_are_fine() -> None:
    usage = b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    role = event({"delta": {"role": "assistant", "content": ""}})
    cloud = openai_cloud(b": comment\n\n", role, b"event: x\r\n", usage, event(token("Hi")), STOP)
    assert all(await advice_at(cloud, b"", b"Hi")) and cloud.counters().skipped_events == 0


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (b"", "the cloud's stream was cut before its end"),
        (httpx.ReadError("reset"), "no answer from the cloud at api.example: ReadError"),
        (httpx.ReadTimeout("stall"), "no answer from the cloud at api.example: ReadTimeout"),
        (event({"delta": {"content": "x"}}), "the cloud sends no logprobs: use an endpoint"),
        (b"x" * 2_000_000, "the cloud sent a line above 1000000 bytes"),
    ],
)
async def test_b40_a_stream_that_breaks_serves_what_it_had_and_then_fails(
    end: bytes | Exception, text: str
) -> None:
    cloud = openai_cloud(event(token("Hi")), event(token(" you")), end)
    async with cloud.open(REQUEST) as advise:
        assert await advise(Question(answer=b"")) and await advise(Question(answer=b"Hi"))
        for _ in range(2):
            with pytest.raises(CloudFailed, match=text):
                await advise(Question(answer=b"Hi you"))
    await cloud.close()


async def test_a_client_bug_is_not_hidden_as_a_lost_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = openai_cloud(event(token("Hi")), STOP)
    monkeypatch.setattr(cloud, "_line", lambda *_: 1 / 0)
    async with cloud.open(REQUEST) as advise:
        with pytest.raises(ZeroDivisionError):
            await advise(Question(answer=b""))
    await cloud.close()


@pytest.mark.parametrize("with_bytes", [True, False])
async def test_a_stalled_server_fails_after_what_it_said(with_bytes: bool) -> None:
    engine = ScriptedEngine(answers={"snow": "It is cold"})
    app = build_openai_upstream(
        engine=engine,
        encode=lambda messages, prompt: engine.tokenize(messages[-1].content),
        faults=Faults(stall_after=3),
        with_bytes=with_bytes,
    )
    with live(app) as server:
        cloud = OpenAICloud(
            url=server.url + "/v1", model="m", on_send=record_nothing, stall_timeout_s=0.3
        )
        async with cloud.open(REQUEST) as advise:
            assert all([await advise(Question(answer=a)) for a in (b"", b"I", b"It")])
            with pytest.raises(CloudFailed, match=r"the cloud said nothing for 0\.3 s"):
                await advise(Question(answer=b"It is"))
        await cloud.close()


async def test_leaving_the_conversation_ends_the_stream() -> None:
    engine = ScriptedEngine(answers={"snow": "It is cold"})
    app = build_openai_upstream(
        engine=engine,
        encode=lambda messages, prompt: engine.tokenize(messages[-1].content),
        faults=Faults(stall_after=1),
    )
    with live(app) as server:
        cloud = OpenAICloud(url=server.url + "/v1", model="m", on_send=record_nothing)
        async with cloud.open(REQUEST) as advise:
            assert await advise(Question(answer=b""))
        await cloud.close()
    assert engine.open_sessions == 0
