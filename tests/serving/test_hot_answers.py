"""Public answers are given again, private ones never, and never to another route or tenant."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_service import ALLOW, LOCAL, MATHS, Script, draw, service_of

from floe.core.config import Config, load_config
from floe.core.errors import BadConfig
from floe.core.request import AdapterScale, Budgets, Message, Request, Sampling
from floe.core.route import Route, Share
from floe.core.token import Event, Finished, Started, Token
from floe.core.verdict import Verdict
from floe.serving.app import build_app
from floe.serving.hot_answers import HotAnswers, Judges
from floe.serving.local import hot_answers

MASK = Verdict(action="mask", reason="found PERSON; masked")
BASE = Request(id="r1", messages=(Message(role="user", content="What is snow?"),))


def vector(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A direction by the words' letters: near texts are near."""
    counts = np.array([text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz?"], np.float32)
    length = float(np.linalg.norm(counts))
    return counts / length if length else counts


@dataclass
class World:
    """A scripted answer behind a memory, with a clock and judges that a test may change."""

    script: Script = field(default_factory=Script)
    route: Route = MATHS
    verdict: Verdict = ALLOW
    now_s: float = 0.0
    inspected: list[Request] = field(default_factory=list)

    def hot(self, *, most_bytes: int = 10**6, cosine: float = 0.0, digest: str = "m") -> HotAnswers:
        def inspect(request: Request) -> Verdict:
            self.inspected.append(request)
            return self.verdict

        return HotAnswers(
            self.script.answer,
            judges=Judges(
                inspect=inspect,
                choose=lambda request: self.route,
                count_prompt=lambda request: 99,
                embed=vector,
            ),
            model_digest=digest,
            most_bytes=most_bytes,
            ttl_s=60,
            cosine=cosine,
            now_s=lambda: self.now_s,
        )


async def ask(hot: HotAnswers, request: Request = BASE) -> list[Event]:
    return [event async for event in hot(request)]


def cached(events: list[Event]) -> str:
    assert isinstance(events[0], Started)
    return events[0].cached


def text_of(events: list[Event]) -> str:
    texts = [e.text for e in events if isinstance(e, Token | Finished)]
    return "".join(texts)


def other(text: str, **changes: Any) -> Request:
    return replace(BASE, messages=(Message(role="user", content=text),), **changes)


async def test_the_same_request_is_answered_again_without_the_engine() -> None:
    world = World()
    hot = world.hot()
    first, second = await ask(hot), await ask(hot, replace(BASE, id="r2"))
    assert (cached(first), cached(second)) == ("", "exact")
    assert len(world.script.requests) == 1
    assert text_of(second) == text_of(first) == "Hello, world"
    assert second[1:-1] == first[1:-1]
    start, end = second[0], second[-1]
    assert isinstance(start, Started) and isinstance(end, Finished)
    assert (start.prompt_tokens, end.cached_tokens, end.completion_tokens) == (7, 7, 4)
    counters = hot.counters()
    assert (counters["hot_answers_exact_hits_total"], counters["hot_answers_misses_total"]) == (
        1,
        1,
    )
    assert counters["hot_answers_entries"] == 1
    assert 0 < counters["hot_answers_bytes"] < 10**6


CHANGES: list[dict[str, Any]] = [
    {"model": "maths"},
    {"tenant": "other"},
    {"cloud": False},
    {"top_log_probs": 3},
    {"lora": (AdapterScale(name="maths"),)},
    {"prompt": "What is snow?", "messages": ()},
    {"budgets": Budgets(token_ms=1)},
    {"budgets": Budgets(first_token_ms=1)},
    {"messages": (Message(role="user", content="What is snow ?"),)},
    {"messages": (Message(role="system", content=""), *BASE.messages)},
    {"messages": (Message(role="assistant", content="What is snow?"),)},
    *(
        {"sampling": Sampling(**change)}
        for change in (
            {"max_tokens": 255},
            {"fits_room": True},
            {"temperature": 1.0, "seed": 1},
            {"seed": 1},
            {"top_p": 0.5},
            {"stop": ("x",)},
        )
    ),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cosine", [0.0, 0.999])
async def test_whatever_shapes_an_answer_makes_another_question(
    change: dict[str, Any], cosine: float
) -> None:
    world = World()
    hot = world.hot(cosine=cosine)
    await ask(hot)
    events = await ask(hot, replace(BASE, **change))
    same_vector = change.get("messages") == (Message(role="user", content="What is snow ?"),)
    if cosine and same_vector:
        assert cached(events) == "semantic"
    else:
        assert cached(events) == ""
        assert len(world.script.requests) == 2


async def test_a_deadline_makes_no_other_question() -> None:
    hot = World().hot()
    await ask(hot)
    assert cached(await ask(hot, replace(BASE, budgets=Budgets(deadline_ms=1)))) == "exact"


@pytest.mark.parametrize("cosine", [0.0, 0.5])
async def test_another_route_or_model_gets_its_own_answer(cosine: float) -> None:
    world = World()
    hot = world.hot(cosine=cosine)
    await ask(hot)
    for route in (
        Route(),
        Route(shares=(Share(name="maths", digest="d2", weight=1.0),)),
        Route(shares=(Share(name="maths", digest="d1", weight=0.5),)),
    ):
        world.route = route
        assert cached(await ask(hot)) == ""
    world.route = MATHS
    assert cached(await ask(hot)) == "exact"


@pytest.mark.parametrize("verdict", [LOCAL, MASK])
@pytest.mark.parametrize("cosine", [0.0, 0.1])
async def test_private_answers_are_never_kept(verdict: Verdict, cosine: float) -> None:
    world = World(verdict=verdict)
    world.script.verdict = verdict
    hot = world.hot(cosine=cosine)
    await ask(hot)
    await ask(hot)
    assert len(world.script.requests) == 2
    assert hot.counters()["hot_answers_entries"] == 0


@pytest.mark.parametrize("verdict", [LOCAL, MASK])
async def test_a_private_question_gets_no_kept_answer_of_a_public_one(verdict: Verdict) -> None:
    world = World()
    hot = world.hot(cosine=0.5)
    await ask(hot)
    near = other("What is snow, Ada?")
    world.verdict = world.script.verdict = verdict
    assert cached(await ask(hot, near)) == ""
    assert world.inspected == [near]
    assert hot.counters()["hot_answers_entries"] == 1


async def test_only_answers_that_come_out_the_same_are_kept() -> None:
    world = World()
    hot = world.hot()
    drawn = replace(BASE, sampling=Sampling(temperature=0.7))
    assert [cached(await ask(hot, drawn)) for _ in "12"] == ["", ""]
    assert hot.counters()["hot_answers_misses_total"] == 0
    seeded = replace(BASE, sampling=Sampling(temperature=0.7, seed=5))
    assert [cached(await ask(hot, seeded)) for _ in "12"] == ["", "exact"]


async def test_a_near_question_counts_when_a_threshold_is_set() -> None:
    world = World()
    hot = world.hot(cosine=0.9)
    await ask(hot)
    events = await ask(hot, other("what is the snow?"))
    start, end = events[0], events[-1]
    assert isinstance(start, Started) and isinstance(end, Finished)
    assert (start.cached, start.prompt_tokens, end.cached_tokens) == ("semantic", 99, 99)
    assert text_of(events) == "Hello, world"
    assert hot.counters()["hot_answers_semantic_hits_total"] == 1
    assert cached(await ask(hot, other("Why do cats purr?"))) == ""


async def test_other_numbers_are_another_question() -> None:
    world = World()
    hot = world.hot(cosine=0.5)
    await ask(hot, other("What is 7 times 12?"))
    assert cached(await ask(hot, other("What is 7 times 13?"))) == ""
    assert cached(await ask(hot, other("what is 7 times 12 ?"))) == "semantic"


async def test_texts_around_the_topic_must_be_equal() -> None:
    world = World()
    hot = world.hot(cosine=0.5)
    french = Message(role="system", content="Answer in French.")
    await ask(hot, replace(BASE, messages=(french, *BASE.messages)))
    assert (
        cached(
            await ask(
                hot, replace(BASE, messages=(french, Message(role="user", content="what is snow")))
            )
        )
        == "semantic"
    )
    german = Message(role="system", content="Answer in German.")
    assert cached(await ask(hot, replace(BASE, messages=(german, *BASE.messages)))) == ""


async def test_answers_cut_short_broken_or_left_are_not_kept() -> None:
    world = World()
    hot = world.hot()
    world.script.fail_at, world.script.error = 3, RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        await ask(hot)
    world.script.fail_at = None
    events = hot(BASE)
    assert isinstance(await anext(events), Started)
    await events.aclose()
    assert world.script.running == 0
    world.script.ends = False
    await ask(hot)
    assert hot.counters()["hot_answers_entries"] == 0

    async def late(request: Request) -> Any:
        async for event in Script().answer(request):
            yield replace(event, ended="deadline") if isinstance(event, Finished) else event

    hot._answer = late
    await ask(hot)
    assert hot.counters()["hot_answers_entries"] == 0


async def test_an_answer_that_the_cloud_was_to_help_with_and_did_not_is_not_kept() -> None:
    world = World(script=Script(draws=[draw(b"alone")]))
    hot = world.hot()
    await ask(hot)
    assert hot.counters()["hot_answers_entries"] == 0
    world.script.cloud = ""
    await ask(hot)
    assert hot.counters()["hot_answers_entries"] == 1


async def test_what_is_too_old_is_gone() -> None:
    world = World()
    hot = world.hot()
    await ask(hot)
    world.now_s = 59.9
    assert cached(await ask(hot)) == "exact"
    world.now_s = 60.0
    assert cached(await ask(hot)) == ""


async def test_an_answer_bigger_than_the_memory_is_not_kept() -> None:
    hot = World().hot(most_bytes=3_000)
    await ask(hot)
    assert hot.counters()["hot_answers_bytes"] == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 4))
def test_the_least_recently_used_goes_first(asked: list[int], room: int) -> None:
    """The twin is a plain list of what was used last."""
    world = World()
    probe = world.hot()
    asyncio.run(ask(probe, other("question 0")))
    size = int(probe.counters()["hot_answers_bytes"])
    hot = world.hot(most_bytes=room * size)
    twin: OrderedDict[int, None] = OrderedDict()

    async def run() -> None:
        for n in asked:
            hit = cached(await ask(hot, other(f"question {n}"))) == "exact"
            assert hit == (n in twin)
            twin[n] = None
            twin.move_to_end(n)
            while len(twin) > room:
                twin.popitem(last=False)
            assert hot.counters()["hot_answers_bytes"] <= room * size

    asyncio.run(run())


async def test_over_http_streams_and_whole_answers_replay_the_same_text() -> None:
    world = World()
    service = service_of(world.script, answer=world.hot())
    transport = httpx.ASGITransport(app=build_app(service))
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        url = "/v1/chat/completions"
        first = (await client.post(url, json=body)).json()
        again = (await client.post(url, json=body)).json()
        streamed = (await client.post(url, json=body | {"stream": True})).text
    assert "cached" not in first["floe"]
    assert again["floe"]["cached"] == "exact"
    assert (first["floe"]["cloud_asked"], again["floe"]["cloud_asked"]) == (2, 0)
    assert again["floe"]["cloud"] is None
    assert again["choices"] == first["choices"]
    assert again["id"] != first["id"]
    chunks = [json.loads(e[6:]) for e in streamed.split("\n\n") if e.startswith("data: {")]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == first["choices"][0]["message"]["content"] == "Hello, world"
    assert {chunks[0]["floe"]["cached"], chunks[-1]["floe"]["cached"]} == {"exact"}
    assert len(world.script.requests) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hot_answers_bytes = -1", r"serve.hot_answers_bytes must be 0 \(off\) or more"),
        ("hot_answers_ttl_s = 0", "serve.hot_answers_ttl_s must be 1 or more"),
        ("hot_answers_cosine = 1.1", r"serve.hot_answers_cosine must be between 0 \(off\) and 1"),
    ],
)
def test_b23_wrong_settings_stop_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "floe.toml"
    path.write_text(f"[serve]\n{text}\n", encoding="utf-8")
    with pytest.raises(BadConfig, match=message):
        load_config(path)


async def test_the_configuration_decides_how_much_is_kept() -> None:
    assert Config().serve.hot_answers_bytes == 0
    serve = replace(Config().serve, hot_answers_bytes=10**5, hot_answers_cosine=0.9)
    edge = SimpleNamespace(
        config=replace(Config(), serve=serve),
        gate=SimpleNamespace(inspect=lambda texts, tenant: ALLOW),
        router=SimpleNamespace(choose=lambda request: MATHS),
        parts=SimpleNamespace(encode=lambda request: [1, 2, 3]),
        embedding=vector,
        engine=SimpleNamespace(info=SimpleNamespace(digest="m")),
    )
    script = Script()
    hot = hot_answers(edge, script.answer)  # type: ignore[arg-type]
    assert [cached(await ask(hot, BASE)) for _ in "12"] == ["", "exact"]
    near = await ask(hot, other("what is the snow?"))
    assert isinstance(near[0], Started)
    assert (near[0].cached, near[0].prompt_tokens) == ("semantic", 3)
