"""A small client of Floe's own server, for the commands that talk to one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from floe.core.errors import BadConfig, FloeError, NotFound

_NO_LISTING = "the server's answer is no list of adapters: is this a Floe server?"
_MALFORMED = "the server sent an event that is no part of an answer: is this a Floe server?"


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.strip()}"} if key and key.strip() else {}


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
    if reply.status_code != 200:
        raise FloeError(_refusal(reply.status_code, reply.content))
    data: dict[str, Any] = reply.json()
    return data


def server_adapters(address: str, key: str | None) -> dict[str, Any]:
    """`/v1/adapters` of the server: rows in `data`, figures in `cache` where they are shown.

    Raises:
        NotFound: no server answers there. FloeError: what it answered, as its message.
    """
    content = _got(address, "/v1/adapters", key, timeout_s=30)
    try:
        data = json.loads(content)
        if all(isinstance(row["id"], str) for row in data["data"]):
            return dict(data)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FloeError(_NO_LISTING) from error
    raise FloeError(_NO_LISTING)


def server_metrics(address: str, key: str | None) -> str:
    """The text of `/metrics`.

    Raises:
        NotFound: no server answers there. FloeError: what it answered, as its message.
    """
    return _got(address, "/metrics", key, timeout_s=10).decode("utf-8", "replace")


def _got(address: str, path: str, key: str | None, *, timeout_s: float) -> bytes:
    """What the server has at `path`."""
    import httpx

    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as client:
            reply = client.get(f"{address}{path}", headers=_headers(key))
    except httpx.InvalidURL as error:
        raise BadConfig(f"{address} is not a URL: {error}", param="url") from error
    except httpx.HTTPError as error:
        kind = type(error).__name__
        raise NotFound(f"no Floe server at {address} ({kind}); start one with: floe up") from error
    if reply.status_code != 200:
        raise FloeError(_refusal(reply.status_code, reply.content))
    return reply.content


def stream_chat(address: str, key: str | None, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed reply; each has `choices`, and each of those a `delta`.

    Raises:
        NotFound: no server answers there.
        FloeError: what the server answered, as its message; a chunk of another form; a stream
            that ended before the answer did.
    """
    import httpx

    url, began, finished = f"{address}/v1/chat/completions", False, False
    try:
        with (
            httpx.Client(timeout=600, trust_env=False) as client,
            client.stream("POST", url, json={**body, "stream": True}, headers=_headers(key)) as r,
        ):
            began = True
            if r.status_code != 200:
                raise FloeError(_refusal(r.status_code, r.read()))
            for line in r.iter_lines():
                if not line.startswith("data:"):
                    continue
                if (event := line.removeprefix("data:").strip()) == "[DONE]":
                    if finished:
                        return
                    break
                chunk = _chunk(event)
                finished = finished or any(c.get("finish_reason") for c in chunk["choices"])
                yield chunk
    except httpx.InvalidURL as error:
        raise BadConfig(f"{address} is not a URL: {error}", param="url") from error
    except httpx.HTTPError as error:
        kind = type(error).__name__
        if began:
            raise FloeError(f"the answer was cut before its end ({kind})") from error
        raise NotFound(f"no Floe server at {address} ({kind}); start one with: floe up") from error
    raise FloeError("the answer was cut before its end: the server sent no finish")


def _chunk(event: str) -> dict[str, Any]:
    """One event as a chunk. Raises FloeError for an error in it, or another form."""
    try:
        chunk = json.loads(event)
        if isinstance(chunk, dict) and "error" in chunk:
            raise FloeError(str(chunk["error"]["message"]))
        texts = [choice["delta"].get("content") for choice in chunk["choices"]]
        formed = isinstance(chunk.get("floe", {}), dict)
        if formed and all(text is None or isinstance(text, str) for text in texts):
            return dict(chunk)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FloeError(_MALFORMED) from error
    raise FloeError(_MALFORMED)


def _refusal(status: int, body: bytes) -> str:
    """The message of an answer that is not 200."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"the server answered with status {status}, and not in Floe's form"
