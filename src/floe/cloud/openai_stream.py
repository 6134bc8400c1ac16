"""Client of any OpenAI-compatible endpoint that streams `top_logprobs`.

Such an endpoint says what it thinks only along its own answer. So the answer is streamed once,
and advice is given for as long as the fused answer is the same text.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from floe.cloud.client import Endpoint, HttpClient, OnSend
from floe.core.advice import Advice, Advise, Candidate, Question
from floe.core.errors import CloudFailed
from floe.core.request import Request

_MAX_ANSWER_BYTES = 1_000_000
_END_STRINGS = frozenset(
    [
        "<|im_end|>",
        "<|endoftext|>",
        "</s>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
    ]
)


class OpenAICloud:
    """`answer.Cloud` over /chat/completions; `url` ends before that path, often with /v1.

    Only the prompt is sent, once, at the first question, with temperature 0. A broken event is
    skipped and counted in `skipped_events`; a stream that is cut or silent for `stall_timeout_s`
    fails the questions beyond what had come. Prompts without messages get no advice, because
    the chat endpoint would answer them instead of continuing them.
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
        on_send: OnSend,
        client: HttpClient | None = None,
    ) -> None:
        self._model, self._top_k = model, min(top_k, 20)  # the API's limit
        self._endpoint = Endpoint(
            url=url,
            key=key,
            connect_timeout_ms=connect_timeout_ms,
            read_timeout_s=stall_timeout_s,
            on_send=on_send,
            client=client,
        )
        self.skipped_events = 0

    @property
    def name(self) -> str:
        """Host and port of the endpoint."""
        return self._endpoint.destination

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Advise]:
        """Questions about one request; leaving the block ends the stream.

        An answer that left the cloud's own text gets None from there on (asking the endpoint to
        continue a corrected answer comes with a later version). The mass that is not among the
        listed tokens counts as not sent. Where the cloud ended its answer, the end counts as
        certain: it was the most probable token, and the API does not say how probable.

        Raises (when asked):
            CloudFailed: no stream, or it ended before it reached this place.
        """
        story = _Story()
        reader: asyncio.Task[None] | None = None

        async def advise(question: Question) -> tuple[Advice, ...]:
            nonlocal reader
            if not request.messages or story.diverged:
                return ()
            if reader is None:
                reader = asyncio.ensure_future(self._read(request, story))
                reader.add_done_callback(lambda _: story.wake())
            advice = await story.at(question.answer, reader)
            if story.diverged:
                reader.cancel()  # what else it would say is of no use
            return (*([advice] if advice else ()), *story.within(question))

        try:
            yield advise
        finally:
            if reader is not None:
                reader.cancel()
                await asyncio.wait({reader})
                if not reader.cancelled():
                    reader.exception()  # read, or asyncio prints it

    async def close(self) -> None:
        """Close the kept connections."""
        await self._endpoint.close()

    async def _read(self, request: Request, story: _Story) -> None:
        """Fill `story` until the cloud's answer ends. Raises CloudFailed if it does not."""
        payload = json.dumps(
            {
                "model": self._model,
                "messages": [{"role": m.role, "content": m.content} for m in request.messages],
                "max_tokens": request.sampling.max_tokens,
                "temperature": 0,
                "stream": True,
                "logprobs": True,
                "top_logprobs": self._top_k,
            },
            ensure_ascii=False,
        ).encode("utf-8")
        lines = self._endpoint.lines("/chat/completions", payload, request_id=request.id)
        try:
            async for line in lines:
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    self._event(line[5:], story)
                if story.finish is not None:
                    return
                if len(story.text) > _MAX_ANSWER_BYTES:
                    raise CloudFailed(f"the cloud's answer is above {_MAX_ANSWER_BYTES} bytes")
        finally:
            await lines.aclose()
        raise CloudFailed("the cloud's stream was cut before its end")

    def _event(self, data: bytes, story: _Story) -> None:
        try:
            tokens, finish = _parse(data)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.skipped_events += 1
            return
        story.extend(tokens, finish)


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    """A token of the cloud's answer and what else it could have been."""

    data: bytes
    candidates: tuple[Candidate, ...]


@dataclass(kw_only=True)
class _Story:
    """The cloud's own answer so far, by byte offset; `changed` wakes those who wait for more."""

    text: bytes = b""
    places: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    finish: str | None = None
    diverged: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def extend(self, tokens: list[_Spoken], finish: str | None) -> None:
        for token in tokens:
            self.places.setdefault(len(self.text), token.candidates)
            self.text += token.data
        self.finish = finish
        if finish == "stop":
            end = Candidate(data=b"", log_prob=0.0, end=True)
            self.places.setdefault(len(self.text), (end,))
        self.wake()

    async def at(self, answer: bytes, reader: asyncio.Task[None]) -> Advice | None:
        offset = len(answer)
        while True:
            shared = min(offset, len(self.text))
            if self.text[:shared] != answer[:shared]:
                self.diverged = True
                return None
            if offset in self.places:
                return Advice(offset_bytes=offset, candidates=self.places[offset])
            if len(self.text) > offset:
                return None  # inside one of the cloud's tokens
            if reader.done():
                reader.result()
                self.diverged = True  # the cloud's answer ended before this place
                return None
            await self.changed.wait()

    def within(self, question: Question) -> tuple[Advice, ...]:
        """Places inside the draft that are known already and agree with it."""
        whole, start = question.text, len(question.answer)
        return tuple(
            Advice(offset_bytes=offset, candidates=candidates)
            for offset, candidates in sorted(self.places.items())
            if start < offset <= len(whole) and self.text[:offset] == whole[:offset]
        )

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _parse(data: bytes) -> tuple[list[_Spoken], str | None]:
    """Tokens and finish reason of one event. Raises one of `_event`'s errors if malformed."""
    choices = json.loads(data)["choices"]
    if not choices:
        return [], None
    choice = choices[0]
    items = (choice.get("logprobs") or {}).get("content") or []
    if not items and (choice.get("delta") or {}).get("content"):
        raise CloudFailed("the cloud sends no logprobs: use an endpoint with top_logprobs")
    return [_spoken(item) for item in items], choice.get("finish_reason")


def _spoken(item: dict[str, Any]) -> _Spoken:
    own = _candidate(item)
    listed = [_candidate(other) for other in item.get("top_logprobs") or []]
    if all((c.data, c.end) != (own.data, own.end) for c in listed):
        listed.append(own)
    listed.sort(key=lambda c: -c.log_prob)
    return _Spoken(data=own.data, candidates=tuple(c for c in listed if c.data or c.end))


def _candidate(item: dict[str, Any]) -> Candidate:
    token, raw, log_prob = item["token"], item.get("bytes"), float(item["logprob"])
    if not math.isfinite(log_prob):
        raise ValueError("logprob is not finite")
    if token in _END_STRINGS:
        return Candidate(data=b"", log_prob=min(log_prob, 0.0), end=True)
    if raw is None and "\ufffd" in token:
        raise ValueError("a piece of a character without its bytes")
    data = bytes(raw) if raw is not None else token.encode("utf-8")
    return Candidate(data=data, log_prob=min(log_prob, 0.0))
