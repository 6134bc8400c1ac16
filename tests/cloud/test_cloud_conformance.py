"""Both clients against real servers on loopback, run through the public list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.request import Message
from floe.serving.logits_app import build_logits_app
from floe.testing.cloud_conformance import CHECKS, CloudCase
from floe.testing.live_server import live
from floe.testing.openai_upstream import build_openai_upstream
from floe.testing.scripted_engine import ScriptedEngine

TEXT = "It is the white kind of rain, and 42!"
KEY = "k-123"


def encoder(engine: ScriptedEngine) -> Callable[[Sequence[Message], str | None], list[int]]:
    def encode(messages: Sequence[Message], prompt: str | None) -> list[int]:
        if prompt is not None:
            return engine.tokenize(prompt)
        turns = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
        return engine.tokenize(turns + "<|im_start|>assistant\n", special=True)

    return encode


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(name="big", answers={"snow": TEXT})


class Clients(list):
    """Clients made by a check, to be closed after it."""

    def keep(self, client):
        self.append(client)
        return client

    async def close(self) -> None:
        for client in self:
            await client.close()


@pytest.fixture
async def floe_case(engine: ScriptedEngine) -> AsyncIterator[CloudCase]:
    app, clients = build_logits_app(engine=engine, encode=encoder(engine), key=KEY), Clients()
    with live(app) as server:
        yield CloudCase(
            make=lambda on_send: clients.keep(LogitCloud(url=server.url, key=KEY, on_send=on_send)),
            text=TEXT.encode(),
            stop=server.kill,
            calls=lambda: engine.sessions_opened,
        )
        await clients.close()
    assert engine.open_sessions == 0


@pytest.fixture
async def openai_case(engine: ScriptedEngine) -> AsyncIterator[CloudCase]:
    app, clients = build_openai_upstream(engine=engine, encode=encoder(engine)), Clients()
    with live(app) as server:
        url = server.url + "/v1"
        yield CloudCase(
            make=lambda on_send: clients.keep(
                OpenAICloud(url=url, model="big", key=KEY, on_send=on_send)
            ),
            text=TEXT.encode(),
            stop=server.kill,
            calls=lambda: app.state.calls,
        )
        await clients.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_logit_cloud(check, floe_case: CloudCase) -> None:
    await check(floe_case)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_openai_cloud(check, openai_case: CloudCase) -> None:
    await check(openai_case)
