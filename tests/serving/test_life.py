"""HTTP over the real `answer` and fusion, on the scripted engine: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from scripted_service import ALLOW, MODELS, Caller, Sent
from starlette.applications import Starlette

from floe.answer import Adapters, Parts, answer
from floe.core.errors import FloeError
from floe.core.request import Request
from floe.core.route import Route
from floe.core.token import Event
from floe.core.verdict import Verdict
from floe.fusion.align import Alignment
from floe.fusion.generate import Fuser
from floe.serving.app import build_app
from floe.serving.service import Service
from floe.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
SAID = "The answer is 42, 日本 and 😀."


class OpenGate:
    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = "") -> Verdict:
        return ALLOW

    def inspect_draft(self, text: str, *, tenant: str = "") -> Verdict:
        return ALLOW


class PlainRouter:
    def choose(self, request: Request) -> Route:
        return Route()


class Leases:
    """Counts the leases that are out."""

    def __init__(self) -> None:
        self.out = 0

    @contextlib.asynccontextmanager
    async def lease(
        self, route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AsyncIterator[Adapters]:
        self.out += 1
        try:
            yield ()
        finally:
            self.out -= 1


class Edge:
    """Everything but the network."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(answers={"question": SAID})
        self.leases = Leases()
        engine = self.engine
        eos_ids = engine.info.eos_ids
        pieces = [engine.token_bytes(i) for i in range(engine.info.n_vocab)]
        self._parts = Parts(
            gate=OpenGate(),
            router=PlainRouter(),
            adapters=self.leases,
            engine=engine,
            encode=lambda request: engine.tokenize(
                "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in request.messages)
                + "<|im_start|>assistant\n",
                special=True,
            ),
            cloud=None,
            guard=lambda advise, _: advise,
            fuse=Fuser(
                weight=1.0,
                budget_ms=0,
                first_budget_ms=0,
                alignment=Alignment(token_bytes=pieces, eos_ids=eos_ids),
                eos_ids=eos_ids,
                token_bytes=engine.token_bytes,
            ),
        )
        self.app: Starlette = build_app(
            Service(answer=self._answer, models=lambda: MODELS, alive=lambda: None)
        )

    def _answer(self, request: Request) -> AsyncGenerator[Event, None]:
        return answer(request, self._parts)

    @property
    def clean(self) -> bool:
        return self.engine.open_sessions == 0 and self.leases.out == 0


@pytest.fixture
def edge() -> Edge:
    return Edge()


def body(**changes: Any) -> bytes:
    messages = [{"role": "user", "content": "question"}]
    return json.dumps({"model": "auto", "messages": messages, "max_tokens": 99} | changes).encode()


def said(sent: Sent) -> str:
    raw = b"".join(m.get("body", b"") for m in sent).decode()
    events = [json.loads(e[6:]) for e in raw.split("\n\n") if e.startswith("data: {")]
    choices = [c for e in events for c in e.get("choices", ())]
    return "".join(c["delta"].get("content", "") for c in choices)


async def test_whole_and_streamed_answers_say_the_same(edge: Edge) -> None:
    whole = json.loads((await Caller(edge.app, CHAT).post(body()))[1]["body"])
    assert whole["choices"][0]["message"]["content"] == SAID
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert said(await Caller(edge.app, CHAT).post(body(stream=True))) == SAID
    assert edge.clean


async def test_a38_the_same_request_twice_has_the_same_text(edge: Edge) -> None:
    answers = [json.loads((await Caller(edge.app, CHAT).post(body()))[1]["body"]) for _ in "12"]
    assert [a["choices"][0]["message"]["content"] for a in answers] == [SAID] * 2
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_seed_gives_the_same_draws_and_another_seed_others(edge: Edge) -> None:
    async def noise(seed: int) -> str:
        messages = [{"role": "user", "content": "anything"}]
        ask = body(messages=messages, temperature=1.0, seed=seed, max_tokens=20)
        answer = json.loads((await Caller(edge.app, CHAT).post(ask))[1]["body"])
        return str(answer["choices"][0]["message"]["content"])

    assert await noise(1) == await noise(1)
    assert len({await noise(seed) for seed in (-1, 1, 2)}) == 3


async def test_a60_leaving_after_any_message_leaves_nothing_behind(edge: Edge) -> None:
    everything = len(await Caller(edge.app, CHAT).post(body(stream=True)))
    assert everything > 20
    for most in range(1, everything):
        client = Caller(edge.app, CHAT, leave=lambda sent, most=most: len(sent) >= most)
        sent = await client.post(body(stream=True))
        assert SAID.startswith(said(sent))
        assert edge.clean


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_the_engine_works_leaves_nothing_behind(
    edge: Edge, stream: bool
) -> None:
    edge.engine.pause()
    client = Caller(edge.app, CHAT)
    asked = asyncio.create_task(client.post(body(stream=stream)))
    while edge.engine.open_sessions == 0:
        await asyncio.sleep(0)
    client.hang_up()
    await asked
    edge.engine.resume()
    assert edge.clean


@pytest.mark.parametrize("n_drawn", [None, 0, 5])
async def test_an_engine_that_fails_ends_one_answer_and_no_other(
    edge: Edge, n_drawn: int | None
) -> None:
    whole = json.loads((await Caller(Edge().app, CHAT).post(body()))[1]["body"])
    prompt_tokens = whole["usage"]["prompt_tokens"]
    fed = 0 if n_drawn is None else prompt_tokens + n_drawn
    edge.engine.fail_after(fed, FloeError("the engine failed"))
    sent = await Caller(edge.app, CHAT).post(body(stream=True))
    assert b"the engine failed" in b"".join(m.get("body", b"") for m in sent)
    assert sent[0]["status"] == (500 if n_drawn is None else 200)
    assert edge.clean
    edge.engine.heal()
    assert said(await Caller(edge.app, CHAT).post(body(stream=True))) == SAID
