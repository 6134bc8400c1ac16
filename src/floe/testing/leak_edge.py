"""An edge for the leak test: real gate, mask, guard, fusers, clients and ledger; a made-up SLM."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from floe.answer import Adapters, Fuse, Gate, Parts, answer
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.request import Message, Request
from floe.core.route import Route
from floe.core.sections import PrivacyConfig
from floe.core.token import Event
from floe.engine.base import FloatArray
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.privacy.base import Detector, Span
from floe.privacy.gate import Gate as RealGate
from floe.privacy.guard import guarded
from floe.privacy.ledger import EgressLedger
from floe.privacy.masked import egress_reason, for_cloud
from floe.privacy.policy import policy_of
from floe.testing.scripted_engine import AdapterKey, ScriptedEngine

Kind = Literal["floe", "openai"]
PolicyName = Literal["strict", "balanced"]
_CRASH_CHARS = 10
CLOSE_PATH = "/leak-test-close"
WAIT_MS = 4_000.0
DETECTOR_TIMEOUT_MS = 2_000
_CASE = re.compile(rb"case-([0-9]+)\)")
_TROUBLE_EVERY, _HANG_EVERY, _CRASH_EVERY = 31, 401, 37


class TellingEngine(ScriptedEngine):
    """Answers a prompt that holds "(case-N)" with the Nth of `answers`; `crashes` ends some so."""

    def __init__(self, answers: Mapping[int, str], *, seed: int, crashes: bool = False) -> None:
        super().__init__(seed=seed, ended=0.0)
        self._told, self._crashes = answers, crashes
        rng = np.random.default_rng(seed)
        noise_V = [rng.normal(-6.0, 1.0, self.info.n_vocab) for _ in range(16)]
        self._noise_V = [n.astype(np.float32) for n in noise_V]

    def log_probs(self, tokens: Sequence[int], *_adapters: AdapterKey) -> FloatArray:
        """One of a few distributions, with nearly all mass on what is told next: made fast."""
        log_probs_V = self._noise_V[len(tokens) % 16].copy()
        told = self._scripted(tokens, {})
        if told is not None:
            log_probs_V[told] = -0.02
        return log_probs_V

    def _scripted(self, tokens: Sequence[int], _answers: Mapping[str, str]) -> int | None:
        pieces = self._pieces
        text = b"".join([pieces[t] for t in tokens])
        found = _CASE.search(text)
        told = self._told.get(int(found[1])) if found else None
        if found is None or told is None:
            return None
        wanted, so_far = told.encode(), text[found.end() :]
        done = next(n for n in range(len(wanted), -1, -1) if so_far.endswith(wanted[:n]))
        if self._crashes and done > _CRASH_CHARS and int(found[1]) % _CRASH_EVERY == 0:
            raise RuntimeError(f"a bug that quotes {text.decode('utf-8', 'replace')}")
        if done == len(wanted):
            return next(iter(self.info.eos_ids))
        return self._longest_piece(wanted[done:])[1]


def encode(engine: ScriptedEngine) -> Callable[[Sequence[Message], str | None], list[int]]:
    """Tokens of a conversation or a prompt."""

    def tokens(messages: Sequence[Message], prompt: str | None) -> list[int]:
        if prompt is not None:
            return engine.tokenize(prompt)
        said = "".join(f"{m.role}: {m.content}\n" for m in messages)
        return engine.tokenize(f"{said}assistant: ")

    return tokens


class Listed:
    """Stands for the NER model: it knows the names that were planted, and no others."""

    name = "listed"

    def __init__(self, names: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(set(names)))) or r"(?!)")

    def find(self, text: str) -> list[Span]:
        """Every listed name."""
        return [
            Span(entity="PERSON", start=m.start(), end=m.end(), score=0.9, recogniser="listed")
            for m in self._pattern.finditer(text)
        ]


class Troubled:
    """A detector that fails for some texts in every way one can, its errors quoting the text."""

    name = "troubled"

    def find(self, text: str) -> Sequence[Span]:
        """Nothing, or trouble."""
        found = _CASE.search(text.encode("utf-8", "replace"))
        number = int(found[1]) if found else 1
        if number % _HANG_EVERY == 0:
            threading.Event().wait(DETECTOR_TIMEOUT_MS / 1000 * 1.2)
        if number % _TROUBLE_EVERY == 0:
            return _fail(text, number // _TROUBLE_EVERY % 4)
        return []


def _fail(text: str, how: int) -> Sequence[Span]:
    if how == 0:
        raise ValueError(text)
    if how == 1:
        raise TimeoutError(f"no answer to {text}")
    if how == 2:
        _bad_json(text)
    return [Span(entity=text, start=-1, end=10**6, score=float("nan"), recogniser=text)]


def _bad_json(text: str) -> NoReturn:
    raise json.JSONDecodeError("status 503", text, 0)


class _Base:
    """A router and an adapter cache with nothing in them."""

    def choose(self, _request: Request) -> Route:
        return Route()

    @asynccontextmanager
    async def lease(
        self, _route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AsyncIterator[Adapters]:
        assert expected_tokens > 0 and tenant
        yield ()


def gate_of(policy: PolicyName, detectors: Sequence[Detector], quick: Detector) -> RealGate:
    """The gate under test; `quick` looks at answers."""
    return RealGate(
        detectors=[*detectors, Troubled()],
        draft_detectors=[quick],
        max_chars=20_000,
        timeout_ms=DETECTOR_TIMEOUT_MS,
        policy=policy_of(PrivacyConfig(policy=policy)),
    )


class LeakEdge:
    """One edge; `answer` is what a server serves. Its ledger is at `ledger_path`."""

    def __init__(
        self,
        *,
        kind: Kind,
        gate: Gate,
        cloud_url: str,
        answers: Mapping[int, str],
        ledger_path: Path,
    ) -> None:
        self.ledger_path = ledger_path
        self.actions: dict[str, int] = {}
        self._ledger = EgressLedger(path=ledger_path)
        engine = TellingEngine(answers, seed=1, crashes=True)
        self.cloud = self._cloud(kind, cloud_url)
        tokens = encode(engine)
        self._parts = Parts(
            gate=gate,
            router=_Base(),
            adapters=_Base(),
            engine=engine,
            encode=lambda request: tokens(request.messages, request.prompt),
            cloud=self.cloud,
            guard=guarded,
            fuse=_fuser(kind, engine),
            mask=for_cloud,
        )

    def answer(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one answer."""
        return answer(request, self._parts)

    def counters(self) -> Mapping[str, float]:
        """The cloud client's figures."""
        counted: Mapping[str, float] = self.cloud.counters().figures()
        return counted

    def with_a_way_to_close(self, app: Any) -> Any:
        """`app`, which closes the cloud's connections in its own loop when CLOSE_PATH is asked."""

        async def closing(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") != CLOSE_PATH:
                await app(scope, receive, send)
                return
            await self.cloud.close()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return closing

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def _cloud(self, kind: Kind, url: str) -> LogitCloud | OpenAICloud:
        def on_send(destination: str, payload: bytes, request_id: str) -> None:
            self._ledger.record(destination, payload, egress_reason(), request_id)

        waits: dict[str, Any] = {
            "key": "leak-test-key",
            "budget_ms": WAIT_MS,
            "first_budget_ms": WAIT_MS,
            "on_send": on_send,
        }
        if kind == "floe":
            return LogitCloud(url=url, **waits)
        return OpenAICloud(url=f"{url}/v1", model="big", continues="prefill", **waits)


def _fuser(kind: Kind, engine: ScriptedEngine) -> Fuse:
    info = engine.info
    common: dict[str, Any] = {
        "weight": 0.6,
        "limits": Limits(budget_ms=WAIT_MS, first_budget_ms=WAIT_MS),
        "alignment": Alignment(
            token_bytes=[engine.token_bytes(i) for i in range(info.n_vocab)], eos_ids=info.eos_ids
        ),
        "eos_ids": info.eos_ids,
        "token_bytes": engine.token_bytes,
    }
    if kind == "floe":
        return SpeculativeFuser(**common)
    return CloudDraftsFuser(
        **common, tokenize=lambda data: engine.tokenize(data.decode("utf-8", "ignore"))
    )
