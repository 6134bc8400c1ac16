"""Budgets of one request: what is accepted, and a deadline that ends an answer cleanly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

import pytest
from scripted_service import Caller, Sent
from test_life import CHAT, SAID, Edge, body, said

from floe.core.advice import Advice, Drafting, Question
from floe.core.deadline import Deadline
from floe.core.errors import BadRequest, Busy
from floe.core.request import Budgets, Request, Sampling
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.serving.ask import chat_ask, completion_ask
from floe.serving.deadline import budgets_of, extension_of
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual


def asked(**floe: Any) -> Request:
    chat = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "floe": floe}
    plain = {"model": "auto", "prompt": "hi", "floe": floe}
    one = chat_ask(chat, request_id="r", default_max_tokens=9).request
    two = completion_ask(plain, request_id="r", default_max_tokens=9).request
    assert (one.budgets, one.cloud) == (two.budgets, two.cloud)
    return one


def test_budgets_arrive_and_absent_ones_are_not_set() -> None:
    assert asked().budgets == asked(token_budget_ms=None, deadline_ms=None).budgets == Budgets()
    request = asked(token_budget_ms=0, first_token_budget_ms=1500.5, deadline_ms=800, cloud=False)
    assert request.budgets == Budgets(token_ms=0, first_token_ms=1500.5, deadline_ms=800)
    assert not request.cloud


@pytest.mark.parametrize(
    ("floe", "message"),
    [
        ({"deadline_ms": 0}, "floe.deadline_ms must be a number from 1 to"),
        ({"deadline_ms": "1"}, "floe.deadline_ms must be a number"),
        ({"token_budget_ms": -1}, "floe.token_budget_ms must be a number from 0"),
        ({"token_budget_ms": True}, "floe.token_budget_ms must be a number"),
        ({"first_token_budget_ms": float("nan")}, "floe.first_token_budget_ms must be"),
        ({"dedline_ms": 5}, 'unknown field "floe.dedline_ms": did you mean "floe.deadline_ms"'),
    ],
)
def test_wrong_budgets_are_refused_by_name(floe: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        budgets_of(extension_of({"floe": floe}))


def test_a_request_changes_the_limits_it_names_only() -> None:
    limits = Limits(budget_ms=250, first_budget_ms=4000, questions=2)
    assert limits.within(Budgets()) == limits
    assert limits.within(Budgets(token_ms=0)) == Limits(
        budget_ms=0, first_budget_ms=4000, questions=2
    )
    assert limits.within(Budgets(first_token_ms=9)).first_budget_ms == 9


@pytest.mark.parametrize("kind", ["the SLM drafts", "the cloud drafts"])
def test_tokens_wait_for_a_silent_cloud_as_long_as_the_request_says(kind: str) -> None:
    engine = ScriptedEngine(seed=1, ended=0.0)
    fusing: dict[str, Any] = {
        "weight": 0.5,
        "limits": Limits(budget_ms=60_000, first_budget_ms=60_000),
        "alignment": Alignment(
            token_bytes=[engine.token_bytes(i) for i in range(engine.info.n_vocab)],
            eos_ids=engine.info.eos_ids,
        ),
        "eos_ids": engine.info.eos_ids,
        "token_bytes": engine.token_bytes,
    }
    fuse = (
        SpeculativeFuser(**fusing)
        if kind == "the SLM drafts"
        else CloudDraftsFuser(**fusing, tokenize=lambda data: engine.tokenize(data.decode()))
    )

    async def silent(_question: Question) -> tuple[Advice, ...]:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def first_token_s(budgets: Budgets) -> float:
        request = Request(id="r", prompt="snow", sampling=Sampling(max_tokens=3), budgets=budgets)
        session = engine.session().result()
        drafting = Drafting(
            step=lambda token: asyncio.wrap_future(session.submit([token])),
            rollback=session.rollback,
            feed_many=lambda tokens: asyncio.wrap_future(session.submit(tokens, every=True)),
        )
        first = asyncio.wrap_future(session.submit(engine.tokenize("snow")))
        async with aclosing(fuse(request, first, drafting, silent)) as draws:
            await anext(draws)
            return asyncio.get_running_loop().time()

    assert run_virtual(first_token_s(Budgets(first_token_ms=20))) == pytest.approx(0.02)
    assert run_virtual(first_token_s(Budgets(token_ms=20))) == pytest.approx(60)


async def ticking(n: int, every_s: float = 0.1) -> AsyncGenerator[int, None]:
    for item in range(n):
        await asyncio.sleep(every_s)
        yield item


@pytest.mark.parametrize(
    ("ms", "items", "cut"),
    [(None, [0, 1, 2], False), (350.0, [0, 1, 2], False), (250.0, [0, 1], True), (50.0, [], True)],
)
def test_items_come_until_the_deadline(ms: float | None, items: list[int], cut: bool) -> None:
    async def run() -> tuple[list[int], bool, float]:
        deadline = Deadline(ms)
        got = [item async for item in deadline.until(ticking(3))]
        return got, deadline.cut, asyncio.get_running_loop().time()

    got, was_cut, ended_s = run_virtual(run())
    assert (got, was_cut) == (items, cut)
    assert ended_s == pytest.approx(0.3 if ms is None or ms > 300 else ms / 1000)


def test_items_without_a_wait_end_too() -> None:
    async def run() -> int:
        deadline, n = Deadline(100), 0
        async for _ in deadline.until(ticking(10**9, every_s=0)):
            n += 1
            await asyncio.sleep(0.03)
        return n

    assert run_virtual(run()) == 4


def test_a_time_out_of_the_source_is_not_taken_for_the_deadline() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        raise TimeoutError("its own")
        yield 0

    async def run() -> None:
        async for _ in Deadline(1000).until(failing()):
            pass

    with pytest.raises(TimeoutError, match="its own"):
        run_virtual(run())

    async def begin() -> None:
        async with Deadline(1000).beginning():
            raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        run_virtual(begin())


def test_a_deadline_before_the_start_is_busy() -> None:
    async def run() -> None:
        async with Deadline(100).beginning():
            await asyncio.sleep(5)

    with pytest.raises(Busy, match="before the answer could begin"):
        run_virtual(run())


class Triggered(Deadline):
    """A deadline that comes when the test says so, whatever the machine's load."""

    made: list[Triggered] = []  # noqa: RUF012 - the latest of one test

    def __init__(self, ms: float | None) -> None:
        super().__init__(None)
        assert ms == 150
        self.made.append(self)

    def come(self) -> None:
        self._at_s = asyncio.get_running_loop().time() + 0.01


class Slow(Edge):
    """An engine that is stuck from the n-th token on; then time runs out."""

    def __init__(self, *, stuck_after: int) -> None:
        super().__init__()
        self._stuck_after = stuck_after

    async def _answer(self, request: Request) -> AsyncGenerator[Any, None]:  # type: ignore[override]
        n = 0
        async for event in super()._answer(request):
            if n == self._stuck_after:
                self.engine.pause()
                Triggered.made[-1].come()
            yield event
            n += 1


@pytest.fixture
def triggered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floe.answer.Deadline", Triggered)
    monkeypatch.setattr(Triggered, "made", [])


def document(sent: Sent) -> Any:
    return json.loads(sent[1]["body"])


@pytest.mark.usefixtures("triggered")
@pytest.mark.parametrize("n_tokens", [0, 1, 4])
async def test_a_deadline_is_a_clean_end_with_the_right_usage(n_tokens: int) -> None:
    edge = Slow(stuck_after=n_tokens)
    ask = body(floe={"deadline_ms": 150})
    answer = document(await Caller(edge.app, CHAT).post(ask))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert SAID.startswith(choice["message"]["content"])
    assert answer["floe"]["ended"] == "deadline"
    usage = answer["usage"]
    assert usage["completion_tokens"] >= n_tokens
    assert usage["completion_tokens"] <= n_tokens + 2
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert edge.clean


@pytest.mark.usefixtures("triggered")
async def test_a_streamed_answer_ends_the_same_way() -> None:
    edge = Slow(stuck_after=3)
    sent = await Caller(edge.app, CHAT).post(body(stream=True, floe={"deadline_ms": 150}))
    raw = b"".join(m.get("body", b"") for m in sent)
    last = json.loads(raw.split(b"\n\n")[-3][6:])
    assert raw.endswith(b"data: [DONE]\n\n")
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["floe"]["ended"] == "deadline"
    assert said(sent) and SAID.startswith(said(sent))
    assert edge.clean


async def test_no_seat_before_the_deadline_is_busy_and_leaves_nothing_behind() -> None:
    edge = Edge()
    edge.engine.session = lambda *a, **k: Future()  # type: ignore[method-assign]
    sent = await Caller(edge.app, CHAT).post(body(floe={"deadline_ms": 50}))
    assert sent[0]["status"] == 503
    assert "before the answer could begin" in document(sent)["error"]["message"]
    assert edge.leases.out == 0


async def test_an_answer_in_time_says_nothing_of_deadlines() -> None:
    edge = Edge()
    answer = document(await Caller(edge.app, CHAT).post(body(floe={"deadline_ms": 60_000})))
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "ended" not in answer["floe"]
    assert edge.clean
