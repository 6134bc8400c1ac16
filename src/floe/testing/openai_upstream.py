"""An OpenAI-like chat endpoint over any engine: greedy, streamed, with top_logprobs, and faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from floe.core.request import Message
from floe.engine.base import Engine, FloatArray

Encode = Callable[[Sequence[Message], str | None], list[int]]
"""Tokens of messages up to where the assistant's answer begins."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong after n token events: cut, silence, or a broken event in between."""

    cut_after: int | None = None
    stall_after: int | None = None
    broken_after: int | None = None
    status: int = 200


def build_openai_upstream(
    *, engine: Engine, encode: Encode, faults: Faults | None = None, with_bytes: bool = True
) -> Starlette:
    """POST /v1/chat/completions with `stream` and `top_logprobs`; `app.state.calls` counts.

    A last message of the assistant's is continued, as llama-server does, and as vLLM does when
    it is asked to. `app.state.asked` holds the bodies.
    """
    trouble = faults or Faults()

    async def chat(request: Request) -> Any:
        app.state.calls += 1
        asked = json.loads(await request.body())
        if trouble.status != 200:
            return JSONResponse({"error": {"message": "no"}}, status_code=trouble.status)
        app.state.asked.append(asked)
        messages = [Message(role=m["role"], content=m["content"]) for m in asked["messages"]]
        begun = messages.pop().content if messages[-1].role == "assistant" else ""
        prompt = encode(messages, None) + engine.tokenize(begun)
        events = _events(engine, prompt, asked, trouble, with_bytes)
        return StreamingResponse(events, media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    app.state.calls, app.state.asked = 0, []
    return app


async def _events(
    engine: Engine, prompt: list[int], asked: dict[str, Any], faults: Faults, with_bytes: bool
) -> AsyncIterator[bytes]:
    session = await asyncio.wrap_future(engine.session(prompt=prompt))
    try:
        log_probs_V = await asyncio.wrap_future(session.submit(prompt))
        yield _event({"delta": {"role": "assistant", "content": ""}})
        reason = "length"
        for n in range(asked["max_tokens"]):
            if n == faults.broken_after:
                yield b'data: {"choices": [{"delta": {"conte\n\n'
            if n == faults.cut_after:
                return
            if n == faults.stall_after:
                await asyncio.Event().wait()
            token = int(log_probs_V.argmax())
            if token in engine.info.eos_ids:
                reason = "stop"
                break
            yield _token(engine, token, log_probs_V, asked["top_logprobs"], with_bytes)
            log_probs_V = await asyncio.wrap_future(session.submit([token]))
        yield _event({"delta": {}, "finish_reason": reason})
        yield b"data: [DONE]\n\n"
    finally:
        session.close()


def _token(
    engine: Engine, token: int, log_probs_V: FloatArray, n_top: int, with_bytes: bool
) -> bytes:
    def entry(i: int) -> dict[str, Any]:
        data = engine.token_bytes(i)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": float(log_probs_V[i]),
            "bytes": list(data) if with_bytes else None,
        }

    top = [entry(int(i)) for i in np.argsort(-log_probs_V)[:n_top]]
    content = [{**entry(token), "top_logprobs": top}]
    return _event(
        {
            "delta": {"content": entry(token)["token"]},
            "logprobs": {"content": content},
            "finish_reason": None,
        }
    )


def _event(choice: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
