"""A request's life in real processes on real models: fused, private, cut off, interleaved."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floe.privacy.ledger import EgressLedger
from tests.lives.conftest import Served

MATHS = "A shop buys 12 boxes with 8 pens in each box and gives away 20 pens. How many are left?"


def ask(served: Served, text: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    reply = served.client.post(
        "/v1/chat/completions",
        json={"model": "auto", "messages": messages, "max_tokens": 24, **body},
    )
    assert reply.status_code == 200, reply.text
    data: dict[str, Any] = reply.json()
    return data


def stream(served: Served, text: str, **body: Any) -> Iterator[dict[str, Any]]:
    messages = [{"role": "user", "content": text}]
    sent = {"model": "auto", "messages": messages, "max_tokens": 40, "stream": True, **body}
    with served.client.stream("POST", "/v1/chat/completions", json=sent) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def sent_for(home: Path, request_id: str) -> int:
    ledger = EgressLedger(path=home / "egress.jsonl")
    assert ledger.verify().sound
    entries = [e for e in ledger.read() if e.request_id == request_id]
    ledger.close()
    return len(entries)


def test_maths_is_fused_and_private_text_stays(
    cloud: Served, new_edge: Callable[[str], Served], models_home: Path
) -> None:
    edge = new_edge(cloud.url)
    fused = ask(edge, MATHS)
    facts = fused["floe"]
    assert facts["verdict"]["action"] == "allow"
    together = facts["fused_tokens"] + facts["cloud_tokens"]
    assert together >= 0.7 * fused["usage"]["completion_tokens"]  # both tokenizers meet there
    assert sent_for(models_home, fused["id"]) >= 1

    secret = "quartzfeather@example.org"
    private = ask(edge, f"My mail is {secret}. Write a greeting.")
    assert private["floe"]["verdict"] == {
        "action": "local",
        "reason": "found EMAIL_ADDRESS",
        "entities": ["EMAIL_ADDRESS"],
    }
    assert private["floe"]["cloud"] is None
    assert private["floe"]["fused_tokens"] == private["floe"]["cloud_tokens"] == 0
    assert sent_for(models_home, private["id"]) == 0

    kept_local = ask(edge, MATHS, floe={"cloud": False})
    assert kept_local["floe"]["cloud"] is None
    assert sent_for(models_home, kept_local["id"]) == 0

    seen = edge.log.read_text() + cloud.log.read_text() + edge.client.get("/metrics").text
    seen += (models_home / "egress.jsonl").read_text()
    for text in (secret, "quartzfeather", "gives away 20 pens"):
        assert text not in seen


def test_b40_b41_b43_the_stream_goes_on_when_the_cloud_is_killed(
    new_cloud: Callable[[], Served], new_edge: Callable[[str], Served]
) -> None:
    doomed = new_cloud()
    edge = new_edge(doomed.url)
    origins, roles, reasons, ids = [], [], [], set()
    for chunk in stream(edge, MATHS, max_tokens=40):
        ids.add(chunk["id"])
        choice = chunk["choices"][0]
        if choice["delta"].get("role"):
            roles.append(choice["delta"]["role"])
        if choice["delta"].get("content"):
            origins.append(chunk["floe"]["origin"])
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
        if len(origins) == 6 and doomed.process.poll() is None:
            doomed.process.kill()
            doomed.process.wait()
    assert set(origins[:5]) <= {"fused", "cloud"}
    assert origins[-1] == "edge"
    assert len(origins) >= 35
    assert roles == ["assistant"]
    assert len(ids) == len(reasons) == 1
    again = ask(edge, "Name three fruits.")
    assert again["usage"]["completion_tokens"] > 0
    assert again["floe"]["fused_tokens"] == again["floe"]["cloud_tokens"] == 0


def test_a_cloud_that_is_not_there_costs_nothing(new_edge: Callable[[str], Served]) -> None:
    edge = new_edge("http://127.0.0.1:9")
    alone = ask(edge, "Name three fruits.")
    assert alone["usage"]["completion_tokens"] > 0
    assert alone["floe"]["fused_tokens"] == alone["floe"]["cloud_tokens"] == 0


def test_a_wrong_key_is_refused_by_the_service(cloud: Served) -> None:
    reply = cloud.client.post("/v1/logits", content=b"{}", headers={"Authorization": "Bearer no"})
    assert reply.status_code == 401
    assert "error" in reply.json()


def test_a19_two_streams_with_different_adapters_both_advance(
    new_edge: Callable[[str], Served],
) -> None:
    edge = new_edge("")
    alone = {
        model: ask(edge, MATHS, model=model)["choices"][0]["message"]["content"]
        for model in ("maths", "code")
    }
    order: list[str] = []
    texts: dict[str, str] = {}
    first = threading.Event()

    def run(model: str) -> None:
        parts = []
        for chunk in stream(edge, MATHS, model=model, max_tokens=24):
            if text := chunk["choices"][0]["delta"].get("content"):
                order.append(model)
                parts.append(text)
                first.set()
        texts[model] = "".join(parts)

    threads = [threading.Thread(target=run, args=(m,)) for m in ("maths", "code")]
    threads[0].start()
    assert first.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(120)
    begins, ends = order.index("code"), len(order) - 1 - order[::-1].index("maths")
    assert begins < ends, "the second stream waited for the first to end"
    for model in ("maths", "code"):
        assert texts[model].split()[:3] == alone[model].split()[:3]
    deadline = time.monotonic() + 10  # the last session is given back just after its last chunk
    while "floe_engine_open_sessions 0.0" not in edge.client.get("/metrics").text:
        assert time.monotonic() < deadline, "a session was not given back"


@pytest.mark.parametrize("model", ["maths", "code", "medicine", "law", "finance"])
def test_every_shipped_adapter_answers(model: str, new_edge_once: Served) -> None:
    reply = ask(new_edge_once, "Explain briefly.", model=model, max_tokens=8)
    assert reply["floe"]["route"]["adapters"] == [{"id": model, "weight": 1.0}]
    assert reply["usage"]["completion_tokens"] > 0


@pytest.fixture(scope="module")
def new_edge_once(models_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from tests.lives.conftest import free_port, start

    served = start(models_home, tmp_path_factory.mktemp("edge"), "serve", port=free_port())
    yield served
    served.stop()
