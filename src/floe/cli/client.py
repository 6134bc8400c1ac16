"""A small client of Floe's own server, for the commands that talk to one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from floe.core.errors import FloeError, NotFound


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def chat_once(
    address: str, key: str | None, text: str, *, max_tokens: int, model: str = "auto"
) -> dict[str, Any]:
    """The whole reply to one user message.

    Raises:
        FloeError: what the server answered, as its message.
    """
    import httpx

    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    url = f"{address}/v1/chat/completions"
    with httpx.Client(timeout=600, trust_env=False) as client:
        reply = client.post(url, json=body, headers=_headers(key))
    data: dict[str, Any] = reply.json()
    if reply.status_code != 200:
        raise FloeError(data["error"]["message"])
    return data


def stream_chat(address: str, key: str | None, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed reply.

    Raises:
        NotFound: no server answers there.
        FloeError: what the server answered, as its message.
    """
    import httpx

    url = f"{address}/v1/chat/completions"
    try:
        with (
            httpx.Client(timeout=600, trust_env=False) as client,
            client.stream("POST", url, json={**body, "stream": True}, headers=_headers(key)) as r,
        ):
            if r.status_code != 200:
                raise FloeError(json.loads(r.read())["error"]["message"])
            for line in r.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise FloeError(chunk["error"]["message"])
                    yield chunk
    except httpx.TransportError as error:
        kind = type(error).__name__
        raise NotFound(f"no Floe server at {address} ({kind}); start one with: floe up") from error
