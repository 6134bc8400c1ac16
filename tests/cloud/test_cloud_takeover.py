"""A real server dies while an answer is fused: the SLM goes on at that very token."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from floe.answer import Cloud
from floe.cloud.client import record_nothing
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.advice import Advice, Advise, Drafting, Question
from floe.core.errors import CloudFailed
from floe.core.request import Request, Sampling
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.generate import Fuser
from floe.serving.logits_app import build_logits_app
from floe.testing.cloud_conformance import REQUEST
from floe.testing.live_server import live
from floe.testing.openai_upstream import Faults, build_openai_upstream
from floe.testing.scripted_engine import ScriptedEngine

EDGE = ScriptedEngine(seed=1, answers={"snow": "It is white and cold and soft."}, ended=0.0)
ANSWER = "It is white and warm and far."
N_TOKENS = 14
SAMPLING = Sampling(max_tokens=N_TOKENS, temperature=0.9, seed=5)


def big() -> ScriptedEngine:
    return ScriptedEngine(seed=2, answers={"snow": ANSWER}, ended=0.0)


def encode_with(engine: ScriptedEngine):
    return lambda messages, prompt: engine.tokenize(messages[-1].content)


def fuser() -> Fuser:
    return Fuser(
        weight=0.4,
        budget_ms=10_000,  # what comes is waited for, so that a run can be replayed
        first_budget_ms=10_000,
        alignment=Alignment(
            token_bytes=[EDGE.token_bytes(i) for i in range(EDGE.info.n_vocab)],
            eos_ids=EDGE.info.eos_ids,
        ),
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
    )


async def stream(advise: Advise) -> list[Draw]:
    """A fused answer whose engine must have been fed exactly what was drawn."""
    session = EDGE.session().result()
    prompt = EDGE.tokenize(REQUEST.messages[-1].content)

    def step(token: int) -> asyncio.Future:
        return asyncio.wrap_future(session.submit([token]))

    request = Request(id="r", messages=REQUEST.messages, sampling=SAMPLING)
    first = asyncio.wrap_future(session.submit(prompt))
    drafting = Drafting(step=step, rollback=session.rollback)
    async with aclosing(fuser()(request, first, drafting, advise)) as draws:
        out = [draw async for draw in draws]
    assert list(session.tokens) == prompt + [d.id for d in out][:-1]
    session.close()
    return out


async def check_takeover(cloud: Cloud, kill_at: int | None = None, kill=lambda: None) -> list[Draw]:
    """Run live, record what the cloud said, and replay without any network."""
    said: dict[bytes, tuple[Advice, ...]] = {}

    async with cloud.open(REQUEST) as asked:

        async def recorded(question: Question) -> tuple[Advice, ...]:
            if len(said) == kill_at:
                await asyncio.to_thread(kill)
            said[question.text] = found = await asked(question)
            return found

        live_draws = await stream(recorded)

    async def replay(question: Question) -> tuple[Advice, ...]:
        if question.text not in said:
            raise CloudFailed("gone")
        return said[question.text]

    assert await stream(replay) == live_draws
    assert len(live_draws) == N_TOKENS
    return live_draws


@pytest.mark.parametrize("k", [0, 1, 5, 9])
async def test_b40_b41_the_logit_service_is_killed_before_any_token(k: int) -> None:
    engine = big()
    with live(build_logits_app(engine=engine, encode=encode_with(engine), key=None)) as server:
        cloud = LogitCloud(url=server.url, on_send=record_nothing)
        draws = await check_takeover(cloud, k, server.kill)
        await cloud.close()
    assert [d.origin != "edge" for d in draws] == [i < k for i in range(N_TOKENS)]


@pytest.mark.parametrize("k", range(8))
async def test_b40_b43_the_openai_stream_is_cut_after_any_token(k: int) -> None:
    engine = big()
    app = build_openai_upstream(
        engine=engine, encode=encode_with(engine), faults=Faults(cut_after=k)
    )
    with live(app) as server:
        cloud = OpenAICloud(url=server.url + "/v1", model="m", on_send=record_nothing)
        draws = await check_takeover(cloud)
        await cloud.close()
    assert sum(d.origin != "edge" for d in draws) <= k


async def test_the_openai_stream_is_fused_as_long_as_the_text_is_the_same() -> None:
    engine = big()
    with live(build_openai_upstream(engine=engine, encode=encode_with(engine))) as server:
        cloud = OpenAICloud(url=server.url + "/v1", model="m", on_send=record_nothing)
        draws = await check_takeover(cloud)
        await cloud.close()
    fused = [d.origin != "edge" for d in draws]
    assert fused[:3] == [True] * 3 and fused == sorted(fused, reverse=True)


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_a_refusing_endpoint_costs_no_token(status: int) -> None:
    engine = big()
    app = build_openai_upstream(
        engine=engine, encode=encode_with(engine), faults=Faults(status=status)
    )
    with live(app) as server:
        cloud = OpenAICloud(url=server.url + "/v1", model="m", on_send=record_nothing)
        draws = await check_takeover(cloud)
        await cloud.close()
    assert {d.origin for d in draws} == {"edge"}
