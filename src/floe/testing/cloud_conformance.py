"""What every `answer.Cloud` keeps, as a list of checks to run on an implementation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from floe.answer import Cloud
from floe.core.advice import Advise, Question
from floe.core.errors import CloudFailed
from floe.core.request import Message, Request, Sampling

SECRET = "Zebedee"
"""A word of the user's that must appear in no error."""
REQUEST = Request(
    id="r-1",
    messages=(Message(role="user", content=f"What does {SECRET} say of snow?"),),
    sampling=Sampling(max_tokens=200),
)


@dataclass(kw_only=True)
class CloudCase:
    """A client to a running server whose model answers REQUEST with `text`.

    `make(on_send)` builds the client, `stop` kills the server, `calls` counts what reached it.
    """

    make: Callable[[Callable[[str, bytes, str], None]], Cloud]
    text: bytes
    stop: Callable[[], None]
    calls: Callable[[], int]
    sent: list[tuple[str, bytes, str]] = field(default_factory=list)

    def client(self) -> Cloud:
        """A client that records its sends in `sent`."""
        return self.make(lambda *sent: self.sent.append(sent))


async def nothing_is_sent_before_the_first_question(case: CloudCase) -> None:
    """Opening a conversation costs nothing and tells nothing."""
    cloud = case.client()
    async with cloud.open(REQUEST):
        assert case.sent == []
    assert case.calls() == 0 and cloud.name


async def its_advice_leads_to_its_own_answer(case: CloudCase) -> None:
    """Following the best candidate gives the answer, with sound numbers all along."""
    async with case.client().open(REQUEST) as advise:
        assert await _follow(advise) == case.text


async def conversations_do_not_disturb_each_other(case: CloudCase) -> None:
    """Two at once say what each says alone."""
    cloud = case.client()
    async with cloud.open(REQUEST) as one, cloud.open(REQUEST) as two:
        assert list(await asyncio.gather(_follow(one), _follow(two))) == [case.text] * 2


async def other_text_is_no_error(case: CloudCase) -> None:
    """Text the cloud would never say gives advice for that place or none."""
    for answer in (b"\xff\xfe", b"Entirely different", case.text[:3] + b"~", case.text + b" more"):
        async with case.client().open(REQUEST) as advise:
            found = await advise(Question(answer=answer))
            assert all(advice.offset_bytes >= len(answer) for advice in found)


async def every_send_is_recorded_first(case: CloudCase) -> None:
    """Destination, the bytes and the request's id are known before anything leaves."""
    cloud = case.client()
    async with cloud.open(REQUEST) as advise:
        await advise(Question(answer=b""))
    ((destination, payload, request_id),) = case.sent
    assert destination == cloud.name and request_id == REQUEST.id
    assert SECRET.encode() in payload and case.calls() == 1


async def a_send_that_cannot_be_recorded_does_not_happen(case: CloudCase) -> None:
    """The ledger's refusal is a CloudFailed, and the server hears nothing."""

    def refuse(_destination: str, _payload: bytes, _request_id: str) -> None:
        raise OSError(f"disk full while writing {SECRET}")

    async with case.make(refuse).open(REQUEST) as advise:
        await _fails(advise, b"", "nothing was sent: the send could not be recorded")
    assert case.calls() == 0


async def a_server_that_is_gone_is_cloud_failed(case: CloudCase) -> None:
    """Every question then fails at once, without the user's words in the message."""
    case.stop()
    async with case.client().open(REQUEST) as advise:
        for _ in range(3):
            await _fails(advise, b"", "no answer from the cloud at 127.0.0.1")


async def a_cancelled_question_leaves_the_client_usable(case: CloudCase) -> None:
    """A stream that is closed while it asks breaks nothing for the next one."""
    cloud = case.client()
    async with cloud.open(REQUEST) as advise:
        question = asyncio.ensure_future(_ask(advise))
        for _ in range(5):
            await asyncio.sleep(0)
        question.cancel()
        await asyncio.wait({question})
    async with cloud.open(REQUEST) as advise:
        assert await _follow(advise) == case.text


CHECKS: tuple[Callable[[CloudCase], Awaitable[None]], ...] = (
    nothing_is_sent_before_the_first_question,
    its_advice_leads_to_its_own_answer,
    conversations_do_not_disturb_each_other,
    other_text_is_no_error,
    every_send_is_recorded_first,
    a_send_that_cannot_be_recorded_does_not_happen,
    a_server_that_is_gone_is_cloud_failed,
    a_cancelled_question_leaves_the_client_usable,
)


async def _ask(advise: Advise) -> None:
    await advise(Question(answer=b""))


async def _fails(advise: Advise, answer: bytes, text: str) -> None:
    try:
        await advise(Question(answer=answer))
    except CloudFailed as error:
        assert text in error.message, error.message
        assert SECRET not in error.message
        return
    raise AssertionError("advise returned instead of raising CloudFailed")


async def _follow(advise: Advise) -> bytes:
    answer = b""
    for _ in range(10_000):
        advice = next(
            (a for a in await advise(Question(answer=answer)) if a.offset_bytes == len(answer)),
            None,
        )
        if advice is None:
            raise AssertionError(f"no advice at {len(answer)} bytes of its own answer")
        log_probs = [c.log_prob for c in advice.candidates]
        assert advice.offset_bytes == len(answer) and log_probs
        assert all(math.isfinite(x) and x <= 0.0 for x in log_probs)
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(map(math.exp, log_probs)) <= 1.0 + 1e-3
        assert all(bool(c.data) != c.end for c in advice.candidates)
        best = advice.candidates[0]
        if best.end:
            return answer
        answer += best.data
    raise AssertionError("the cloud's answer has no end")
