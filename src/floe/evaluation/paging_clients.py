"""Clients that ask a server for many adapters, each as its part of a trace says."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from floe.core.errors import FloeError

TIMEOUT_S = 120.0
_SAMPLE = re.compile(r"^floe_adapter_([a-z_]+) ([-+0-9.eE]+|NaN)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request: due `at_s` after the start, for one adapter by name or for whatever is routed.

    `adapter` is the one whose topic the prompt is of.
    """

    at_s: float
    model: str
    prompt: str
    max_tokens: int
    adapter: str


@dataclass(frozen=True, kw_only=True)
class Got:
    """What became of it; `ttft_s` from sending to the first token, None for an error.

    `adapter` is what answered, "" = the base.
    """

    ttft_s: float | None
    total_s: float
    tokens: int
    error: str = ""
    adapter: str = ""


def ask_all(url: str, wanted: Sequence[Wanted], *, clients: int) -> list[Got]:
    """Answers in the order of `wanted`; request i belongs to client i mod `clients`.

    A client sends when its request is due, or when its last answer has ended, if that is later.
    """
    got: list[Got | None] = [None] * len(wanted)
    began_s = time.perf_counter()

    def run(client: int) -> None:
        for i in range(client, len(wanted), clients):
            early_s = wanted[i].at_s - (time.perf_counter() - began_s)
            if early_s > 0:
                time.sleep(early_s)
            got[i] = ask(url, wanted[i])

    threads = [threading.Thread(target=run, args=(c,), daemon=True) for c in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [
        g if g is not None else Got(ttft_s=None, total_s=0, tokens=0, error="lost") for g in got
    ]


def ask(url: str, wanted: Wanted) -> Got:
    """One streamed completion; whatever goes wrong is part of the answer."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    body = {
        "model": wanted.model,
        "prompt": wanted.prompt,
        "max_tokens": wanted.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began_s = time.perf_counter()
    first_s, tokens, error, adapter = None, 0, "", ""
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        for line in response if response.status == 200 else ():
            if not line.startswith(b"data: {"):
                continue
            first_s = first_s or time.perf_counter() - began_s
            event = json.loads(line[6:])
            error = error or str(event.get("error") or "")
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for share in (event.get("floe") or {}).get("route", {}).get("adapters", ()):
                adapter = share["id"]
        if response.status != 200:
            error = f"status {response.status}"
    except (OSError, http.client.HTTPException, ValueError) as fault:
        error = type(fault).__name__
    finally:
        connection.close()
    total_s = time.perf_counter() - began_s
    ttft_s = None if error else first_s
    return Got(ttft_s=ttft_s, total_s=total_s, tokens=tokens, error=error, adapter=adapter)


def cache_figures(url: str) -> dict[str, float]:
    """The adapter cache's figures without labels, from /metrics.

    Raises:
        FloeError: the page does not have them.
    """
    with urllib.request.urlopen(url + "/metrics", timeout=TIMEOUT_S) as response:
        found: dict[str, Any] = {
            name: float(value) for name, value in _SAMPLE.findall(response.read().decode())
        }
    if "hits_total" not in found:
        raise FloeError(f"{url}/metrics has no figures of the adapter cache")
    return found
