"""Once private, for good."""

from __future__ import annotations

import asyncio
import logging

import pytest

from floe.core.advice import Advice, Candidate, Question
from floe.core.verdict import Verdict
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.guard import guarded

ADVICE = Advice(offset_bytes=0, candidates=(Candidate(data=b"x", log_prob=-0.1),))
ALLOW = Verdict(action="allow", reason="fine")
LOCAL = Verdict(action="local", reason="found PERSON")


class Cloud:
    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def __call__(self, question: Question) -> tuple[Advice, ...]:
        self.asked.append(question.text)
        return (ADVICE,)


async def test_clean_answers_reach_the_cloud() -> None:
    cloud, seen = Cloud(), []

    def inspect(text: str) -> Verdict:
        seen.append(text)
        return ALLOW

    ask = guarded(cloud, inspect)
    assert await ask(Question(answer=b"")) == (ADVICE,)
    assert await ask(Question(answer="né".encode()[:2])) == (ADVICE,)
    assert await ask(Question(answer=b"\xff\xfe ok")) == (ADVICE,)
    assert seen == ["", "n", "\ufffd\ufffd ok"]
    assert cloud.asked == [b"", b"n\xc3", b"\xff\xfe ok"]


async def test_after_one_local_the_cloud_is_never_asked_again() -> None:
    cloud = Cloud()
    ask = guarded(cloud, lambda text: LOCAL if "secret" in text else ALLOW)
    assert await ask(Question(answer=b"my ")) == (ADVICE,)
    assert await ask(Question(answer=b"my secret")) == ()
    assert await ask(Question(answer=b"my ")) == ()
    assert cloud.asked == [b"my "]


async def test_a_raising_inspector_counts_as_local(caplog: pytest.LogCaptureFixture) -> None:
    cloud, calls = Cloud(), []

    def inspect(text: str) -> Verdict:
        calls.append(text)
        raise RuntimeError("alice@example.com")

    ask = guarded(cloud, inspect)
    with caplog.at_level(logging.DEBUG):
        assert await ask(Question(answer=b"alice@example.com")) == ()
        assert await ask(Question(answer=b"")) == ()
    assert (cloud.asked, len(calls)) == ([], 1)
    assert "RuntimeError" in caplog.text
    assert "alice" not in caplog.text


async def test_an_inspector_that_answers_nonsense_counts_as_local() -> None:
    cloud = Cloud()
    assert await guarded(cloud, lambda text: None)(Question(answer=b"hi")) == ()
    assert cloud.asked == []


async def test_advice_on_its_way_is_dropped_when_the_answer_has_become_private() -> None:
    release = asyncio.Event()

    async def slow(_question: Question) -> tuple[Advice, ...]:
        await release.wait()
        return (ADVICE,)

    ask = guarded(slow, lambda text: LOCAL if text else ALLOW)
    first = asyncio.ensure_future(ask(Question(answer=b"")))
    await asyncio.sleep(0)  # lets the first ask reach the cloud
    assert await ask(Question(answer=b"private")) == ()
    release.set()
    assert await first == ()


async def test_with_the_real_gate_a_number_stops_the_asking() -> None:
    gate = Gate(
        detectors=[RuleDetector()],
        draft_detectors=[RuleDetector()],
        max_chars=1000,
        timeout_ms=1000,
    )
    cloud = Cloud()
    ask = guarded(cloud, gate.inspect_draft)
    answer = b"Your card is 4111 1111 1111 1111."
    given = [await ask(Question(answer=answer[:n])) for n in range(len(answer) + 1)]
    assert given.index(()) == answer.index(b"4111") + 7  # six digits may be the beginning of one
    assert all(found == () for found in given[given.index(()) :])
    assert cloud.asked[-1] == b"Your card is 4111 1"


async def test_an_end_that_may_become_private_waits_until_it_is_something_else() -> None:
    cloud = Cloud()
    ask = guarded(cloud, lambda text: ALLOW)
    assert await ask(Question(answer=b"It has 1234567")) == ()
    assert await ask(Question(answer=b"It has 1234567 people.")) == (ADVICE,)
    assert cloud.asked == [b"It has 1234567 people."]


async def test_a_draft_is_cut_where_a_value_may_begin() -> None:
    asked: list[Question] = []

    async def cloud(question: Question) -> tuple[Advice, ...]:
        asked.append(question)
        return tuple(Advice(offset_bytes=o, candidates=ADVICE.candidates) for o in (4, 8, 99))

    ask = guarded(cloud, lambda text: ALLOW)
    text, draft = "né: ".encode(), b"to ada@exa"
    found = await ask(Question(answer=text, draft=draft))
    assert asked.pop() == Question(answer=text, draft=b"to ")
    assert [a.offset_bytes for a in found] == [4, 8]
    await ask(Question(answer=text, draft=draft, ends=(5, 7, 12, 15)))
    assert asked.pop() == Question(answer=text, draft=b"to", ends=(5, 7))
    assert await ask(Question(answer=text + draft, ends=(5, 7, 12, 15))) == ()
    assert asked == []
