"""Cloud services that break in a chosen way at a chosen byte of an answer, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import httpx

from floe.answer import Cloud
from floe.cloud.client import record_nothing
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.cloud.wire import LogitResponse, dump_response, parse_request
from floe.core.advice import Advice

Fault = Literal[
    "cut", "stall", "reset", "garbage", "malformed event", "wrong key", "429", "500", "slow loris"
]
FAULTS: tuple[Fault, ...] = (
    *("cut", "stall", "reset", "garbage", "malformed event"),
    *("wrong key", "429", "500", "slow loris"),
)
BUDGET_MS, FIRST_BUDGET_MS = 50.0, 200.0
"""What tokens wait; a round trip takes ROUND_TRIP_S."""
ROUND_TRIP_S = 0.02
_STATUS: dict[str, int] = {"wrong key": 401, "429": 429, "500": 500}
_BROKEN = b'data: {"choices": [{"delta": {"conte\n\n'


class Network(httpx.AsyncBaseTransport):
    """Both kinds of service in one, well until a question reaches `at_bytes` of the answer.

    `advice` is what the cloud says after some bytes of it, its own word first.

    From then on every answer has the fault, except a malformed event, which comes once.
    """

    def __init__(
        self, advice: Callable[[bytes], Advice], fault: Fault | None = None, *, at_bytes: int = 0
    ) -> None:
        self._advice, self.fault, self._at_bytes = advice, fault, at_bytes
        self._is_broken = False

    def cloud(self, client: str) -> Cloud:
        """A client whose requests go through this network."""
        transport = httpx.AsyncClient(transport=self)
        if client == "floe":
            return LogitCloud(
                url="https://cloud.example",
                budget_ms=BUDGET_MS,
                first_budget_ms=FIRST_BUDGET_MS,
                on_send=record_nothing,
                client=transport,
            )
        return OpenAICloud(
            url="https://cloud.example",
            model="m",
            budget_ms=BUDGET_MS,
            first_budget_ms=FIRST_BUDGET_MS,
            continues="vllm" if client == "vllm" else "no",
            on_send=record_nothing,
            client=transport,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """An answer after one round trip, good or bad."""
        await asyncio.sleep(ROUND_TRIP_S)
        timeout_s = float(request.extensions["timeout"]["read"])
        if request.url.path.endswith("/v1/logits"):
            return await self._scored(request.content, timeout_s)
        status = _STATUS.get(self.fault or "")
        if status is not None and (self._is_broken or not self._at_bytes):
            return httpx.Response(status)
        last = json.loads(request.content)["messages"][-1]
        begun = last["content"].encode() if last["role"] == "assistant" else b""
        return httpx.Response(200, stream=_Pieces(self._told(begun, timeout_s)))

    async def _scored(self, body: bytes, timeout_s: float) -> httpx.Response:
        asked = parse_request(body)
        start, whole = len(asked.answer), asked.answer + asked.draft
        self._is_broken = self._is_broken or len(whole) >= self._at_bytes
        places = [start, *(end for end in asked.ends if end > start)]
        positions = tuple(self._advice(whole[:place]) for place in places)
        good = dump_response(LogitResponse(model="m", tokenizer_digest="", positions=positions))
        if self.fault is None or not self._is_broken:
            return httpx.Response(200, content=good)
        status = _STATUS.get(self.fault)
        if status is not None:
            return httpx.Response(status)
        if self.fault == "malformed event":
            return httpx.Response(200, content=good.replace(b"positions", b"position"))
        return httpx.Response(200, stream=_Pieces(_fail(self.fault, good, timeout_s)))

    async def _told(self, text: bytes, timeout_s: float) -> AsyncIterator[bytes]:
        """The cloud's own answer from `text` on, event by event, until the fault."""
        while True:
            advice = self._advice(text)
            best = advice.candidates[0]
            at_fault = self.fault is not None and len(text) >= self._at_bytes
            if at_fault and not (self.fault == "malformed event" and self._is_broken):
                self._is_broken = True
                if self.fault == "malformed event":
                    yield _BROKEN
                elif self.fault in _STATUS:
                    raise httpx.ReadError("reset")
                elif self.fault is not None:
                    async for piece in _fail(self.fault, _event(advice), timeout_s):
                        yield piece
                    return
            yield _event(advice)
            text += best.data
            await asyncio.sleep(0.002)
            if best.end:
                return


async def _fail(fault: Fault, good: bytes, timeout_s: float) -> AsyncIterator[bytes]:
    """What comes in place of `good`."""
    if fault == "garbage":
        yield bytes(range(256)) * 4 + b"\n"
        return
    if fault == "slow loris":
        for byte in good:
            await asyncio.sleep(0.9 * timeout_s)
            yield bytes([byte])
        return
    yield good[: len(good) // 2]
    if fault == "stall":
        await asyncio.sleep(timeout_s)
        raise httpx.ReadTimeout("stall")
    if fault == "reset":
        raise httpx.ReadError("reset")


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        close: Callable[[], Any] | None = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()


def _event(advice: Advice) -> bytes:
    top = [
        {"token": c.data.decode("latin-1"), "logprob": c.log_prob, "bytes": list(c.data)}
        for c in advice.candidates
    ]
    content = [{**top[0], "top_logprobs": top}]
    choice = {"index": 0, "delta": {"content": top[0]["token"]}, "logprobs": {"content": content}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
