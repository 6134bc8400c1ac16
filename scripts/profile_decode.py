"""Where a decode step's time goes, from the caller's `feed` to its result, in microseconds.

Probes are put around the engine's own methods; medians over many one-token steps are printed.
Run: python scripts/profile_decode.py MODEL.gguf [--threads 2] [--steps 200] [--asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floe.engine import kv_context, lanes, scheduler
from floe.engine.llamacpp import LlamaCppEngine

now = time.perf_counter
SPANS_S: dict[str, list[float]] = defaultdict(list)
MARKS_S: dict[str, float] = {}


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def probe(*args: Any, **kwargs: Any) -> Any:
        began = now()
        try:
            return call(*args, **kwargs)
        finally:
            MARKS_S[name] = now()
            SPANS_S[name].append(MARKS_S[name] - began)
            MARKS_S[name + " began"] = began

    return probe


def install(engine: LlamaCppEngine) -> None:
    kv_context.KvContext._fill = timed("fill batch", kv_context.KvContext._fill)
    kv_context.KvContext._logits = timed("see logits", kv_context.KvContext._logits)
    lanes.log_softmax = timed("log softmax", lanes.log_softmax)
    scheduler.Scheduler._decode_turn = timed("whole turn", scheduler.Scheduler._decode_turn)
    c = engine.library.c
    c.llama_decode = timed("llama_decode", c.llama_decode)


def step(session: Any, token: int, loop: asyncio.AbstractEventLoop | None) -> int:
    began = now()
    if loop is None:
        row = session.feed([token])
    else:

        async def one() -> Any:
            return await asyncio.wrap_future(session.submit([token]))

        row = loop.run_until_complete(one())
    ended = now()
    SPANS_S["1 call to llama_decode"].append(MARKS_S["llama_decode began"] - began)
    SPANS_S["2 llama_decode"].append(MARKS_S["llama_decode"] - MARKS_S["llama_decode began"])
    SPANS_S["3 to log-probabilities"].append(MARKS_S["log softmax"] - MARKS_S["llama_decode"])
    SPANS_S["4 log-probabilities to caller"].append(ended - MARKS_S["log softmax"])
    SPANS_S["5 all"].append(ended - began)
    token = int(row.argmax())
    SPANS_S["6 argmax"].append(now() - ended)
    return token


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--asyncio", action="store_true")
    given = parser.parse_args()
    engine = LlamaCppEngine(given.model, digest="profile", threads=given.threads)
    session = engine.session().result()
    session.feed(list(range(100, 164)))
    install(engine)
    loop = asyncio.new_event_loop() if given.asyncio else None
    token = 5
    for _ in range(given.steps):
        token = step(session, token, loop)
    for name, spans in sorted(SPANS_S.items()):
        some = sorted(spans)
        print(
            f"{name:<32} median {statistics.median(some) * 1e6:9.0f} us"
            f"   p90 {some[len(some) * 9 // 10] * 1e6:9.0f} us"
        )
    session.close()
    engine.close()


if __name__ == "__main__":
    main()
