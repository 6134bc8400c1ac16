"""Feedback: by whom an answer may be judged, and what may be said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from scripted_service import Script, service_of

from floe.core.errors import NotFound
from floe.core.sections import TenantConfig
from floe.serving.app import build_app
from floe.serving.feedback import Answered
from floe.serving.service import Feedback, Service

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}


def _into(heard: list[Feedback]) -> Callable[[Feedback], Awaitable[bool]]:
    async def hear(said: Feedback) -> bool:
        heard.append(said)
        return True

    return hear


def client_of(service: Service) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8741")


async def test_what_was_thought_of_an_answer_reaches_the_router() -> None:
    heard: list[Feedback] = []

    async def hear(said: Feedback) -> bool:
        heard.append(said)
        return len(heard) == 1

    async with client_of(service_of(Script(), feedback=hear)) as client:
        for stream in (False, True):
            reply = await client.post(CHAT, json=ASK | {"stream": stream})
            id_ = reply.headers["x-request-id"]
            said = {"request_id": id_, "thumbs": 1, "metric": 0.25}
            answer = await client.post("/v1/feedback", json=said)
            assert answer.status_code == 200
            learned = not stream
            assert answer.json() == {"object": "feedback", "request_id": id_, "learned": learned}
        await client.post("/v1/feedback", json={"request_id": id_, "thumbs": -1, "metric": None})
    assert heard[0] == Feedback(
        request_id=heard[0].request_id, tenant="default", thumbs=1, metric=0.25
    )
    assert (heard[2].thumbs, heard[2].metric) == (-1, None)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "request_id is required"),
        ({"request_id": 5}, "request_id must be a string"),
        ({"request_id": "x" * 129, "thumbs": 1}, "at most 128 characters"),
        ({"request_id": "x"}, "give thumbs"),
        ({"request_id": "x", "thumbs": None, "metric": None}, "give thumbs"),
        ({"request_id": "x", "thumbs": 0}, "thumbs must be 1, -1 or null"),
        ({"request_id": "x", "thumbs": 2}, "thumbs must be a whole number from -1 to 1"),
        ({"request_id": "x", "thumbs": True}, "thumbs must be a whole number"),
        ({"request_id": "x", "thumbs": 1.0}, "thumbs must be a whole number"),
        ({"request_id": "x", "metric": 1.5}, "metric must be a number from 0 to 1"),
        ({"request_id": "x", "metric": -0.1}, "metric must be a number from 0 to 1"),
        ({"request_id": "x", "metric": "0.5"}, "metric must be a number"),
        ({"request_id": "x", "thumb": 1}, 'did you mean "thumbs"'),
    ],
)
async def test_what_is_no_feedback_is_refused(said: dict[str, Any], message: str) -> None:
    heard: list[Feedback] = []
    async with client_of(service_of(Script(), feedback=_into(heard))) as client:
        answer = await client.post("/v1/feedback", json=said)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert heard == []


@pytest.mark.parametrize("metric", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused(metric: str) -> None:
    heard: list[Feedback] = []
    async with client_of(service_of(Script(), feedback=_into(heard))) as client:
        id_ = (await client.post(CHAT, json=ASK)).json()["id"]
        answer = await client.post(
            "/v1/feedback",
            content=f'{{"request_id": "{id_}", "metric": {metric}}}',
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 400
    assert heard == []


async def test_only_the_tenant_that_got_the_answer_may_judge_it() -> None:
    heard: list[Feedback] = []
    service = service_of(
        Script(),
        feedback=_into(heard),
        api_key="own-key",
        tenants={"ward": TenantConfig()},
        tenant_keys={"ward": "ward-key"},
    )
    own, ward = ({"authorization": f"Bearer {k}"} for k in ("own-key", "ward-key"))
    async with client_of(service) as client:
        id_ = (await client.post(CHAT, json=ASK, headers=ward)).json()["id"]
        said = {"request_id": id_, "thumbs": 1}
        foreign = await client.post("/v1/feedback", json=said, headers=own)
        unknown = await client.post(
            "/v1/feedback", json=said | {"request_id": "chatcmpl-0"}, headers=own
        )
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json() == unknown.json()
        assert "no answer of this id" in foreign.json()["error"]["message"]
        assert (await client.post("/v1/feedback", json=said, headers=ward)).status_code == 200
    assert [said.tenant for said in heard] == ["ward"]


async def test_an_answer_that_never_ended_cannot_be_judged() -> None:
    script = Script(error=RuntimeError("x"), fail_at=2)
    async with client_of(service_of(script, feedback=_into([]))) as client:
        reply = await client.post(CHAT, json=ASK | {"stream": True})
        said = {"request_id": reply.headers["x-request-id"], "thumbs": 1}
        assert (await client.post("/v1/feedback", json=said)).status_code == 404


async def test_without_a_router_that_learns_it_is_said() -> None:
    async with client_of(service_of(Script())) as client:
        answer = await client.post("/v1/feedback", json={"request_id": "x", "thumbs": 1})
    assert answer.status_code == 501
    assert "learns nothing" in answer.json()["error"]["message"]


def test_old_answers_and_old_ids_are_forgotten() -> None:
    now = [0.0]
    answered = Answered(most=2, kept_s=10.0, now_s=lambda: now[0])
    for id_ in ("a", "b", "c"):
        answered.add(id_, "default")
    with pytest.raises(NotFound, match="within a day"):
        answered.check("a", "default")
    answered.check("b", "default")
    now[0] = 10.5
    with pytest.raises(NotFound):
        answered.check("b", "default")
