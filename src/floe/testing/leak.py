"""The leak test: thousands of planted values, and nothing of them in any byte that left.

A real server on a real socket, with the real gate, mask, guard, fusers, cloud clients and ledger,
is asked; a tap on its line to the cloud sees every byte. Logs of every level, what is printed,
metrics, ledgers and the bodies of errors are searched too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from floe.answer import Gate
from floe.core.request import Message, Request
from floe.core.token import Event
from floe.engine.base import Engine
from floe.privacy.base import Detector
from floe.privacy.detector import RuleDetector
from floe.testing.leak_cases import FRIENDLY, Case, cases, public_text
from floe.testing.leak_edge import (
    CLOSE_PATH,
    Kind,
    LeakEdge,
    Listed,
    PolicyName,
    TellingEngine,
    encode,
    gate_of,
)
from floe.testing.leak_tap import Tap
from floe.testing.leak_values import BY_MODEL
from floe.testing.leak_watch import Leak, LogWatch, StreamWatch, Watch
from floe.testing.live_server import live
from floe.testing.openai_upstream import build_openai_upstream

KINDS: tuple[Kind, ...] = ("floe", "openai")
POLICIES: tuple[PolicyName, ...] = ("strict", "balanced")
Ask = Callable[[Request], AsyncGenerator[Event, None]]
Encode = Callable[[Sequence[Message], str | None], list[int]]


@dataclass(frozen=True, kw_only=True)
class Doors:
    """The servers under test, which this part may not import.

    `edge` makes the app of `floe serve` from an answerer and its counters, `logits` that of
    `floe cloud` from an engine.
    """

    edge: Callable[[Ask, Callable[[], Mapping[str, float]]], Any]
    logits: Callable[[Engine, Encode], Any]


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """What was tried and what was seen.

    `leaks` counts cases with a leak, in `by_field`, `by_encoding`, `by_kind` and `by_place` (sent,
    log, stderr, stdout, metrics, ledger, error) too. `sent_bytes` left in `questions` requests;
    `actions` counts verdicts, `statuses` HTTP answers. `numbers` are the leaking cases, of which
    `floe.testing.leak_cases` makes the same again from the seed.
    """

    prompts: int
    leaks: int
    by_field: Mapping[str, int]
    by_encoding: Mapping[str, int]
    by_kind: Mapping[str, int]
    by_place: Mapping[str, int]
    actions: Mapping[str, int]
    statuses: Mapping[str, int]
    questions: int
    sent_bytes: int
    seen_bytes: Mapping[str, int]
    numbers: tuple[int, ...]
    seconds: float


def run_leak_test(
    n_prompts: int,
    seed: int = 0,
    *,
    doors: Doors,
    detectors: Sequence[Detector] | None = None,
    policies: Sequence[PolicyName] = POLICIES,
    kinds: Sequence[Kind] = KINDS,
    fault_share: float = 0.1,
    at_once: int = 8,
    gate: Gate | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LeakReport:
    """Ask `n_prompts` times, spread over policies and kinds of cloud, and search what was seen.

    `detectors` stand for the rules and a list of the planted names (the NER model's part); `gate`
    for the whole gate, to show that the test can fail. `progress(done, all)`. Not for an event
    loop that is running.
    """
    began_s = time.monotonic()
    all_cases = list(cases(n_prompts, seed=seed))
    watch = Watch(public=public_text())
    for case in all_cases:
        for value in case.planted:
            watch.plant(case.number, value)
    rules = RuleDetector()
    found: Sequence[Detector] = detectors or [rules, Listed(_names(all_cases))]
    told = {c.number: c.answer for c in all_cases}
    seen = _Seen(watch)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floe-leak-")))
        stack.enter_context(_watched(watch))
        edges, taps = [], []
        for kind in kinds:
            tap = stack.enter_context(_upstream(kind, doors, watch, seed, fault_share, n_prompts))
            taps.append(tap)
            for policy in policies:
                edge = LeakEdge(
                    kind=kind,
                    gate=gate or gate_of(policy, found, rules),
                    cloud_url=tap.url,
                    answers=told,
                    ledger_path=folder / f"{kind}-{policy}.jsonl",
                )
                stack.callback(edge.close)
                app = edge.with_a_way_to_close(doors.edge(edge.answer, edge.counters))
                edges.append((edge, stack.enter_context(live(app)).url))
        asyncio.run(_ask_all(all_cases, [url for _, url in edges], seen, at_once, progress))
        for edge, url in edges:
            watch.see("metrics", httpx.get(f"{url}/metrics", trust_env=False).text)
            watch.see("ledger", edge.ledger_path.read_bytes())
            httpx.get(f"{url}{CLOSE_PATH}", trust_env=False)
    return _report(all_cases, watch, seen, sum(t.questions for t in taps), began_s)


def _names(all_cases: Sequence[Case]) -> list[str]:
    return [v for c in all_cases if c.kind in BY_MODEL for v in c.planted]


@contextmanager
def _upstream(
    kind: Kind, doors: Doors, watch: Watch, seed: int, fault_share: float, n_cases: int
) -> Iterator[Tap]:
    """A cloud that says the same to all, behind a tap."""
    big = TellingEngine(dict.fromkeys(range(n_cases), FRIENDLY), seed=2)
    app = (
        doors.logits(big, encode(big))
        if kind == "floe"
        else build_openai_upstream(engine=big, encode=encode(big))
    )
    with live(app) as server:
        port = urlsplit(server.url).port
        assert port is not None
        tap = Tap(watch=watch, port=port, seed=seed, fault_share=fault_share)
        try:
            yield tap
        finally:
            tap.close()


@contextmanager
def _watched(watch: Watch) -> Iterator[None]:
    """Every log record of every logger, at every level, and whatever is printed."""
    root, handler = logging.getLogger(), LogWatch(watch)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    loggers = [root, *(logging.getLogger(n) for n in list(logging.root.manager.loggerDict))]
    before = [(one, one.level, one.disabled) for one in loggers]
    handlers, disabled = root.handlers[:], logging.root.manager.disable
    root.handlers[:] = [handler]
    logging.disable(logging.NOTSET)
    for one in loggers:
        one.setLevel(logging.DEBUG)
        one.disabled = False
    try:
        with (
            contextlib.redirect_stderr(StreamWatch(watch, "stderr")),
            contextlib.redirect_stdout(StreamWatch(watch, "stdout")),
        ):
            yield
    finally:
        root.handlers[:] = handlers
        logging.disable(disabled)
        for one, level, was_disabled in before:
            one.setLevel(level)
            one.disabled = was_disabled


class _Seen:
    """What the client was told, without what was said to it: the answer is the user's own."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.actions: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()

    def reply(self, status: int, headers: httpx.Headers, body: bytes) -> None:
        """One whole answer that is not a stream."""
        self.statuses[str(status)] += 1
        self._watch.see("error", str(headers))
        data = json.loads(body) if body else None
        if status != 200:
            self._watch.see("error", body)
            self._watch.see_json("error", data)
        elif isinstance(data, dict):
            self.actions[self._action(data)] += 1

    def stream(self, lines: Sequence[str]) -> None:
        """The lines of one stream."""
        said = [self._action(json.loads(one[6:])) for one in lines if one.startswith("data: {")]
        self.actions[next(filter(None, said), "")] += 1

    def _action(self, data: dict[str, Any]) -> str:
        rest = {key: value for key, value in data.items() if key not in ("choices", "model")}
        self._watch.see_json("error", rest)
        verdict = (data.get("floe") or {}).get("verdict")
        return str(verdict["action"]) if isinstance(verdict, dict) else ""


async def _ask_all(
    all_cases: Sequence[Case],
    urls: Sequence[str],
    seen: _Seen,
    at_once: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    places, done = asyncio.Semaphore(at_once), 0
    limits = httpx.Limits(max_connections=2 * at_once)
    async with httpx.AsyncClient(trust_env=False, timeout=60.0, limits=limits) as client:

        async def one(case: Case) -> None:
            nonlocal done
            async with places:
                await _ask(client, urls[case.number % len(urls)], case, seen)
            done += 1
            if progress is not None:
                progress(done, len(all_cases))

        await asyncio.gather(*(one(case) for case in all_cases))


async def _ask(client: httpx.AsyncClient, url: str, case: Case, seen: _Seen) -> None:
    async with client.stream("POST", url + case.path, json=dict(case.body)) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            seen.statuses[str(response.status_code)] += 1
            lines: list[str] = []
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) == case.stop_after:
                    seen.statuses["left"] += 1
                    break
            seen.stream(lines)
        else:
            seen.reply(response.status_code, response.headers, await response.aread())


def _report(
    all_cases: Sequence[Case], watch: Watch, seen: _Seen, questions: int, began_s: float
) -> LeakReport:
    leaking: dict[int, list[Leak]] = {}
    for leak in watch.leaks:
        leaking.setdefault(leak.number, []).append(leak)
    bad = [case for case in all_cases if case.number in leaking]
    return LeakReport(
        prompts=len(all_cases),
        leaks=len(bad),
        by_field=Counter(c.where for c in bad),
        by_encoding=Counter(c.encoding for c in bad),
        by_kind=Counter(c.kind for c in bad),
        by_place=Counter(leak.where for some in leaking.values() for leak in some),
        actions=dict(seen.actions),
        statuses=dict(seen.statuses),
        questions=questions,
        sent_bytes=watch.bytes["sent"],
        seen_bytes=dict(watch.bytes),
        numbers=tuple(c.number for c in bad),
        seconds=time.monotonic() - began_s,
    )
