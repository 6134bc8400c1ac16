"""B43, B44: a failing cloud gives whole and streamed answers of the same text and form."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest
from scripted_service import ALLOW, MODELS, Caller
from starlette.applications import Starlette

from floe.answer import Adapters, Cloud, Parts, answer
from floe.cloud.client import record_nothing
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.outcome import Outcome
from floe.core.request import Request
from floe.core.route import Route
from floe.core.token import Event
from floe.core.verdict import Verdict
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.speculate import Limits
from floe.serving.app import build_app
from floe.serving.service import Service
from floe.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
ENGINE = ScriptedEngine(seed=4, answers={"question": "The answer is 42, 日本 and 😀."})
WORDS = ["The", " answer", " is", " 42", ", ", "日本"]


class Open:
    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = "") -> Verdict:
        return ALLOW

    def inspect_draft(self, text: str, *, tenant: str = "") -> Verdict:
        return ALLOW

    def choose(self, request: Request) -> Route:
        return Route()

    @contextlib.asynccontextmanager
    async def lease(
        self, route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AsyncIterator[Adapters]:
        yield ()


def said(word: str) -> bytes:
    token = {"token": word, "logprob": -0.01, "bytes": list(word.encode()), "top_logprobs": []}
    choice = {"delta": {"content": word}, "logprobs": {"content": [token]}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


class Body(httpx.AsyncByteStream):
    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


TOLD = [said(w) for w in WORDS]
BROKEN = b'data: {"choices": [{"delta": {"conte\n\n'
FAULTS: dict[str, Callable[[], httpx.Response]] = {
    "refused": lambda: httpx.Response(500),
    "busy": lambda: httpx.Response(429, headers={"retry-after": "30"}),
    "wrong key": lambda: httpx.Response(401),
    "cut at once": lambda: httpx.Response(200, stream=Body()),
    "cut": lambda: httpx.Response(200, stream=Body(*TOLD[:3])),
    "reset": lambda: httpx.Response(200, stream=Body(*TOLD[:4], httpx.ReadError("reset"))),
    "garbage": lambda: httpx.Response(200, stream=Body(bytes(range(256)))),
    "malformed event": lambda: httpx.Response(200, stream=Body(TOLD[0], BROKEN, *TOLD[1:])),
}


def nothing_listens() -> httpx.Response:
    raise httpx.ConnectError("refused")


def cloud_of(kind: str, fault: Callable[[], httpx.Response]) -> Cloud:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: fault()))
    options: dict[str, Any] = {
        "url": "https://cloud.example",
        "on_send": record_nothing,
        "client": client,
        "budget_ms": 0,
        "first_budget_ms": 0,
    }
    return LogitCloud(**options) if kind == "floe" else OpenAICloud(model="m", **options)


def app_of(cloud: Cloud, learn: Callable[[Outcome], None] = lambda _: None) -> Starlette:
    eos_ids, n_vocab = ENGINE.info.eos_ids, ENGINE.info.n_vocab
    parts = Parts(
        gate=Open(),
        router=Open(),
        adapters=Open(),
        engine=ENGINE,
        encode=lambda request: ENGINE.tokenize(
            f"{request.topic()}<|im_start|>assistant\n", special=True
        ),
        cloud=cloud,
        guard=lambda advise, _: advise,
        fuse=CloudDraftsFuser(
            weight=0.5,
            limits=Limits(budget_ms=5_000, first_budget_ms=5_000),
            alignment=Alignment(
                token_bytes=[ENGINE.token_bytes(i) for i in range(n_vocab)], eos_ids=eos_ids
            ),
            eos_ids=eos_ids,
            token_bytes=ENGINE.token_bytes,
            tokenize=lambda data: ENGINE.tokenize(data.decode("utf-8", "ignore")),
        ),
        learn=learn,
    )

    def ask(request: Request) -> AsyncGenerator[Event, None]:
        return answer(request, parts)

    return build_app(Service(answer=ask, models=lambda: MODELS, alive=lambda: None))


async def post(fault: str, kind: str, **changes: Any) -> bytes:
    cloud = cloud_of(kind, FAULTS[fault])
    messages = [{"role": "user", "content": "question"}]
    body = {"model": "auto", "messages": messages, "max_tokens": 40, "temperature": 0.4, "seed": 6}
    sent = await Caller(app_of(cloud), CHAT).post(json.dumps(body | changes).encode())
    await cloud.close()
    assert sent[0]["status"] == 200 and ENGINE.open_sessions == 0
    return b"".join(m.get("body", b"") for m in sent)


@pytest.mark.parametrize("kind", ["floe", "openai"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_b43_b44_whole_and_streamed_answers_are_the_same(fault: str, kind: str) -> None:
    whole = json.loads(await post(fault, kind))
    raw = (await post(fault, kind, stream=True, stream_options={"include_usage": True})).decode()
    lines = [line[6:] for line in raw.splitlines() if line.startswith("data: ")]
    assert lines.count("[DONE]") == 1 == raw.count("data: [DONE]") and lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    choices = [c for e in events for c in e["choices"]]
    text = "".join(c["delta"].get("content") or "" for c in choices)
    (one,) = whole["choices"]
    assert text == one["message"]["content"] and text
    finishes = [c["finish_reason"] for c in choices if c["finish_reason"]]
    assert finishes == [one["finish_reason"]]
    assert sum("role" in c["delta"] for c in choices) == 1
    assert len({e["id"] for e in events}) == 1 and "error" not in raw
    (usage,) = [e["usage"] for e in events if e.get("usage")]
    same = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[k] for k in same] == [whole["usage"][k] for k in same]


async def test_the_cloud_took_part_until_it_broke() -> None:
    """So that the parity above is not one of answers the cloud never touched."""
    fused = {f: json.loads(await post(f, "openai"))["floe"]["fused_tokens"] for f in FAULTS}
    assert fused["refused"] == fused["cut at once"] == fused["garbage"] == 0
    assert 0 < fused["cut"] < fused["reset"] < fused["malformed event"]


async def test_what_became_of_a_request_is_told_once() -> None:
    heard: list[Outcome] = []
    for fault in ("cut", "refused"):
        cloud = cloud_of("openai", FAULTS[fault])
        messages = [{"role": "user", "content": "question"}]
        body = {"model": "auto", "messages": messages, "max_tokens": 9}
        await Caller(app_of(cloud, heard.append), CHAT).post(json.dumps(body).encode())
        await cloud.close()
    fused, alone = heard
    assert fused.topic == alone.topic == "question" and fused.tenant == "default"
    assert fused.completion_tokens == alone.completion_tokens == 9
    assert fused.agreement is not None and fused.agreement <= 0.0
    assert 0 < fused.agreement_tokens <= 9
    assert alone.agreement is None and alone.agreement_tokens == 0
    for outcome in heard:
        assert outcome.first_token_ms is not None
        assert 0 <= outcome.wait_ms <= outcome.first_token_ms <= outcome.total_ms


@pytest.mark.parametrize("kind", ["floe", "openai"])
@pytest.mark.parametrize("fault", [FAULTS["wrong key"], nothing_listens])
async def test_floe_cloud_names_the_cloud_only_while_text_was_sent(
    kind: str, fault: Callable[[], httpx.Response]
) -> None:
    """Refused questions count, those that the breaker turned away do not: nothing left."""
    sent = 0

    def counted() -> httpx.Response:
        nonlocal sent
        sent += 1
        return fault()

    cloud = cloud_of(kind, counted)
    app = app_of(cloud)
    body = {"model": "auto", "messages": [{"role": "user", "content": "question"}]}
    seen = []
    for _ in range(20):
        before = sent
        answered = await Caller(app, CHAT).post(json.dumps(body).encode())
        facts = json.loads(b"".join(m.get("body", b"") for m in answered))["floe"]
        assert (facts["cloud"] == "cloud.example") == (facts["cloud_asked"] > 0) == (sent > before)
        assert facts["fused_tokens"] == 0
        seen.append(facts["cloud"])
    await cloud.close()
    assert (seen[0], seen[-1]) == ("cloud.example", None)
