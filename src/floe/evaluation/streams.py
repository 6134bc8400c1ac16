"""Answers streamed over HTTP, with the moment at which each piece of text came.

Both servers are asked for the same: one prompt, greedy, so many tokens, one adapter.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from floe.core.errors import FloeError

now = time.perf_counter
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """When a stream began, when its text came and how many tokens it had."""

    began_s: float
    text_s: tuple[float, ...]
    ended_s: float
    n_tokens: int
    n_prompt_tokens: int

    @property
    def ttft_s(self) -> float:
        """From sending the request to the first text."""
        return self.text_s[0] - self.began_s

    @property
    def longest_gap_s(self) -> float:
        """The longest wait between two pieces of text."""
        return max((b - a for a, b in zip(self.text_s, self.text_s[1:], strict=False)), default=0.0)


class Server(Protocol):
    """A server under measurement."""

    url: str

    def request(self, prompt: str, adapter: int, n_tokens: int) -> tuple[str, dict[str, Any]]:
        """Path and body that ask for a stream."""
        ...

    def read(self, event: dict[str, Any]) -> tuple[str, int | None, int | None]:
        """Text of an event, and the counts of all tokens and of the prompt's when it has them."""
        ...


class FloeServer:
    """`floe serve` and the names of its adapters."""

    def __init__(self, url: str, adapters: list[str]) -> None:
        self.url, self._adapters = url, adapters

    def request(self, prompt: str, adapter: int, n_tokens: int) -> tuple[str, dict[str, Any]]:
        """OpenAI's completion with usage."""
        return "/v1/completions", {
            "model": self._adapters[adapter],
            "prompt": prompt,
            "max_tokens": n_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def read(self, event: dict[str, Any]) -> tuple[str, int | None, int | None]:
        """Text and usage of a chunk."""
        text = event["choices"][0]["text"] if event.get("choices") else ""
        usage = event.get("usage") or {}
        return text, usage.get("completion_tokens"), usage.get("prompt_tokens")


class PeerServer:
    """llama-server with its adapters by number."""

    def __init__(self, url: str, n_adapters: int) -> None:
        self.url, self._n_adapters = url, n_adapters

    def request(self, prompt: str, adapter: int, n_tokens: int) -> tuple[str, dict[str, Any]]:
        """Its own completion."""
        scales = [float(i == adapter) for i in range(self._n_adapters)]
        return "/completion", {
            "prompt": prompt,
            "n_predict": n_tokens,
            "temperature": 0,
            "stream": True,
            "cache_prompt": True,
            "lora": [{"id": i, "scale": scale} for i, scale in enumerate(scales)],
        }

    def read(self, event: dict[str, Any]) -> tuple[str, int | None, int | None]:
        """Text of an event; the last one has the counts."""
        ended = event.get("stop") is True
        return (
            event.get("content", ""),
            event.get("tokens_predicted") if ended else None,
            event.get("tokens_evaluated") if ended else None,
        )


def stream(
    server: Server,
    prompt: str,
    adapter: int,
    n_tokens: int,
    on_text: Callable[[int], None] = lambda _: None,
) -> Streamed:
    """One answer; `on_text` is told how many pieces of text have come.

    Raises:
        FloeError: another status than 200, an error in the stream, or no text.
    """
    path, body = server.request(prompt, adapter, n_tokens)
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    text_s: list[float] = []
    count, prompt_count = None, None
    began_s = now()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise FloeError(f"{server.url}{path} answered {response.status}: {response.read()!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise FloeError(f"{server.url}{path} broke off: {event['error']}")
            text, n, n_prompt = server.read(event)
            count, prompt_count = (n or count), (n_prompt or prompt_count)
            if text:
                text_s.append(now())
                on_text(len(text_s))
    finally:
        connection.close()
    if not text_s or count is None:
        raise FloeError(f"{server.url}{path} streamed no text or did not count its tokens")
    return Streamed(
        began_s=began_s,
        text_s=tuple(text_s),
        ended_s=now(),
        n_tokens=count,
        n_prompt_tokens=prompt_count or 0,
    )


def overlapping(
    server: Server, prompts: tuple[str, str], n_tokens: int, *, after: int = 5
) -> tuple[Streamed, Streamed]:
    """A under adapter 0; once `after` pieces of it have come, B under adapter 1."""
    arrived = threading.Event()
    done: dict[str, Streamed | BaseException] = {}

    def run_a() -> None:
        try:
            done["a"] = stream(
                server, prompts[0], 0, n_tokens, lambda n: arrived.set() if n == after else None
            )
        except BaseException as error:
            done["a"] = error
        finally:
            arrived.set()

    thread = threading.Thread(target=run_a, daemon=True)
    thread.start()
    arrived.wait()
    b = stream(server, prompts[1], 1, n_tokens)
    thread.join()
    a = done["a"]
    if isinstance(a, BaseException):
        raise a
    return a, b
