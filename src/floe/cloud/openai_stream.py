"""Client of any OpenAI-compatible endpoint that streams `top_logprobs`.

Such an endpoint says what it thinks only along its own answer. So the answer is streamed once,
and advice is given for as long as the fused answer is the same text.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from floe.cloud.client import Endpoint, HttpClient, OnSend
from floe.cloud.counters import CloudCounters, Tally
from floe.cloud.story import Story, parse_event
from floe.core.advice import Advice, Advise, Question
from floe.core.errors import CloudFailed
from floe.core.request import Request

Continues = Literal["no", "vllm", "prefill"]
_MAX_ANSWER_BYTES = 1_000_000


class OpenAICloud:
    """`answer.Cloud` over /chat/completions; `url` ends before that path, often with /v1.

    Only the prompt is sent, once, at the first question, with temperature 0. A broken event is
    skipped and counted; a stream that is cut, or brings no token for `stall_timeout_s`, fails the
    questions beyond what had come. Prompts without messages get no advice, because the chat
    endpoint would answer them instead of continuing them.

    `continues` says how the endpoint goes on from an answer that was corrected: "no" (OpenAI),
    "vllm" (continue_final_message) or "prefill" (llama-server: a last message of the assistant's).
    Then the answer so far is sent when it has left the cloud's own text or the stream has broken,
    at most `max_restarts` times an answer, and only for a question that says its answer is final
    (`ahead_bytes`).
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        key: str | None = None,
        top_k: int = 20,
        connect_timeout_ms: float = 500,
        stall_timeout_s: float = 10.0,
        budget_ms: float = 250,
        first_budget_ms: float = 4_000,
        continues: Continues = "no",
        max_restarts: int = 16,
        on_send: OnSend,
        client: HttpClient | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._model, self._top_k = model, min(top_k, 20)  # the API's limit
        self._stall_timeout_s = stall_timeout_s
        self._budget_ms, self._first_budget_ms = budget_ms, first_budget_ms
        self._continues, self._max_restarts = continues, max_restarts
        self._endpoint = Endpoint(
            url=url,
            key=key,
            connect_timeout_ms=connect_timeout_ms,
            read_timeout_s=stall_timeout_s,
            on_send=on_send,
            client=client,
            rng=rng,
        )

    @property
    def name(self) -> str:
        """Host and port of the endpoint."""
        return self._endpoint.destination

    def counters(self) -> CloudCounters:
        """What the client has counted so far."""
        return self._endpoint.counters()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Advise]:
        """Questions about one request; leaving the block ends the stream.

        A question is answered once the cloud has said as much as its draft covers, or something
        else. Text that is not the cloud's own gets no advice. The mass that is not among the
        listed tokens counts as not sent. Where the cloud ended its answer, the end counts as
        certain: it was the most probable token, and the API does not say how probable.

        Raises (when asked):
            CloudFailed: no stream, or it ended before it reached this place.
        """
        conversation = _Conversation(
            read=lambda story: self._read(request, story),
            continues=self._continues != "no",
            max_restarts=self._max_restarts,
            tally=self._endpoint.tally,
        )

        async def advise(question: Question) -> tuple[Advice, ...]:
            return await conversation.advise(question) if request.messages else ()

        try:
            yield advise
        finally:
            await conversation.close()

    async def close(self) -> None:
        """Close the kept connections."""
        await self._endpoint.close()

    async def _read(self, request: Request, story: Story) -> None:
        """Fill `story` until the cloud's answer ends. Raises CloudFailed if it does not."""
        within_ms = self._budget_ms if story.base else self._first_budget_ms
        payload = self._payload(request, story.base.decode("utf-8"))
        await self._endpoint.patiently(
            lambda: self._read_once(payload, request.id, story, within_ms),
            within_ms=within_ms,
            is_fresh=lambda: story.is_fresh,
        )

    async def _read_once(
        self, payload: bytes, request_id: str, story: Story, within_ms: float
    ) -> None:
        now_s = asyncio.get_running_loop().time
        async with self._endpoint.exchange(
            "/chat/completions",
            payload,
            request_id=request_id,
            within_ms=within_ms,
            is_stream=True,
        ) as incoming:
            try:
                async with (
                    asyncio.timeout(self._stall_timeout_s) as limit,
                    aclosing(incoming.lines()) as lines,
                ):
                    async for line in lines:
                        if self._line(line, story):
                            limit.reschedule(now_s() + self._stall_timeout_s)
                        if story.finish is not None:
                            return
            except TimeoutError:
                silence = f"the cloud said nothing for {self._stall_timeout_s:g} s"
                raise CloudFailed(silence) from None
            raise CloudFailed("the cloud's stream was cut before its end")

    def _payload(self, request: Request, answer: str) -> bytes:
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": request.sampling.max_tokens,
            "temperature": 0,
            "stream": True,
            "logprobs": True,
            "top_logprobs": self._top_k,
        }
        if answer:
            messages.append({"role": "assistant", "content": answer})
            if self._continues == "vllm":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        return json.dumps(body, ensure_ascii=False).encode("utf-8")

    def _line(self, line: bytes, story: Story) -> bool:
        """Whether the line brought tokens or the end. Raises CloudFailed above 1 MB of answer."""
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return False
        try:
            tokens, finish = parse_event(line[5:])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self._endpoint.tally.skipped_events += 1
            return False
        story.extend(tokens, finish)
        if len(story.text) > _MAX_ANSWER_BYTES:
            raise CloudFailed(f"the cloud's answer is above {_MAX_ANSWER_BYTES} bytes")
        return bool(tokens) or finish is not None


class _Conversation:
    """The streams of one answer: one at a time, a new one from the corrected answer."""

    def __init__(
        self,
        *,
        read: Callable[[Story], Coroutine[Any, Any, None]],
        continues: bool,
        max_restarts: int,
        tally: Tally,
    ) -> None:
        self._read, self._tally = read, tally
        self._restarts_left = max_restarts if continues else 0
        self._story = Story()
        self._reader: asyncio.Task[None] | None = None
        self._over: list[asyncio.Task[None]] = []

    async def advise(self, question: Question) -> tuple[Advice, ...]:
        """Advice at the answer's end, inside the draft, and ahead if that was asked for."""
        reader = self._reader or self._start(Story())
        may_restart = self._may_restart(question)
        try:
            found = await self._story.about(question, reader)
        except CloudFailed:
            if not may_restart:
                raise
            found = None
        if found is not None:
            return found
        if question.ahead_bytes or self._story.is_far_from(question.answer):
            self._stop()  # else the answer may be a guess of the asker's, to be undone
        if not may_restart:
            return ()
        self._restarts_left -= 1
        self._tally.restarted += 1
        reader = self._start(Story(base=question.answer))
        return await self._story.about(question, reader) or ()

    def _may_restart(self, question: Question) -> bool:
        """Whether the endpoint may be asked to go on from this answer, which is final."""
        allowed = question.ahead_bytes > 0 and self._restarts_left > 0
        return allowed and _may_be_continued(question.answer)

    async def close(self) -> None:
        """End the stream and wait until it is gone."""
        self._stop()
        if self._over:
            await asyncio.wait(self._over)
        for task in self._over:
            if not task.cancelled():
                task.exception()  # read, or asyncio prints it

    def _start(self, story: Story) -> asyncio.Task[None]:
        self._story, self._reader = story, asyncio.ensure_future(self._read(story))
        self._reader.add_done_callback(lambda _: story.wake())
        return self._reader

    def _stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            if self._reader not in self._over:
                self._over.append(self._reader)


def _may_be_continued(answer: bytes) -> bool:
    """Whole characters, and no white space at the end, after which models go on oddly (B46)."""
    try:
        text = answer.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return bool(text) and not text[-1].isspace()
