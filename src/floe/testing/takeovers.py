"""The cloud fails in every way at every token of an answer: does the SLM go on at that token?

Whole answers (`floe.answer`) over the real clients, with a scripted pair of models and a network
that breaks on purpose, in virtual time. `takeovers` returns counts for a test or a benchmark.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from floe.answer import Adapters, Fuse, Parts, answer
from floe.core.advice import Advice, Candidate
from floe.core.request import Message, Request, Sampling
from floe.core.route import Route
from floe.core.token import Draw, Event, Finished, Started, Token
from floe.core.verdict import Verdict
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.generate import Fuser
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.testing.broken_network import BUDGET_MS, FAULTS, FIRST_BUDGET_MS, Fault, Network
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual

CLIENTS: tuple[str, ...] = ("floe", "openai", "vllm")
FUSERS: tuple[str, ...] = ("token by token", "speculative", "cloud drafts")
_ALLOW = Verdict(action="allow", reason="nothing found")
_ANSWER = "It is white and cold, and the 42 in it is an ant that went there in the end."
_WEIGHT = 0.4


@dataclass(frozen=True, kw_only=True)
class Takeovers:
    """What happened in `cases` answers.

    `continued`: those with every token and one clean end. `repeats` and `gaps`: tokens that the
    engine was fed twice or never, or that were drawn from another context than the streamed text.
    `fused` tokens came from both models, `failed` names the cases that were not well.
    """

    cases: int
    continued: int
    repeats: int
    gaps: int
    fused: int
    failed: tuple[str, ...]


def takeovers(
    *,
    n_tokens: int = 12,
    faults: Sequence[Fault] = FAULTS,
    clients: Sequence[str] = CLIENTS,
    fusers: Sequence[str] = FUSERS,
    temperature: float = 0.7,
) -> Takeovers:
    """Every fault at every token position of an answer, for every client and fuser."""
    cases = continued = repeats = gaps = fused = 0
    failed: list[str] = []
    for client in clients:
        for fuser in fusers:
            bench = _Bench(client, fuser, n_tokens=n_tokens, temperature=temperature)
            for fault in faults:
                for place in range(n_tokens):
                    case = bench.run(fault, place)
                    cases += 1
                    continued += case.is_whole
                    repeats += case.repeats
                    gaps += case.gaps
                    fused += case.fused
                    if not case.is_whole or case.repeats or case.gaps:
                        failed.append(f"{client}, {fuser}, {fault} at token {place}")
    return Takeovers(
        cases=cases,
        continued=continued,
        repeats=repeats,
        gaps=gaps,
        fused=fused,
        failed=tuple(failed),
    )


@dataclass(frozen=True, kw_only=True)
class _Case:
    is_whole: bool
    repeats: int
    gaps: int
    fused: int


class _Bench:
    """One client and one fuser; `offsets` are the bytes at which the tokens of its answer begin."""

    def __init__(self, client: str, fuser: str, *, n_tokens: int, temperature: float) -> None:
        self._client, self._fuser = client, fuser
        sampling = Sampling(max_tokens=n_tokens, temperature=temperature, seed=5)
        messages = (Message(role="user", content="Tell me about snow"),)
        self._request = Request(id="r", messages=messages, sampling=sampling)
        self._network = Network(_advice)
        drawn, _, _ = run_virtual(self._answer())
        self.offsets = [sum(len(d.data) for d in drawn[:i]) for i in range(n_tokens)]

    def run(self, fault: Fault, place: int) -> _Case:
        """One answer in which `fault` begins where its token number `place` would be scored."""
        self._network = Network(_advice, fault, at_bytes=self.offsets[place])
        drawn, events, fed = run_virtual(self._answer())
        wanted = [d.id for d in drawn][:-1]
        wrong = sum(a != b for a, b in zip(fed, wanted, strict=False))
        return _Case(
            is_whole=_is_whole(events, drawn, self._request.sampling.max_tokens),
            repeats=max(0, len(fed) - len(wanted)),
            gaps=max(0, len(wanted) - len(fed)) + wrong + _from_elsewhere(drawn),
            fused=sum(d.origin != "edge" for d in drawn),
        )

    async def _answer(self) -> tuple[list[Draw], list[Event], list[int]]:
        """Draws, events, and the tokens that the engine was fed behind the prompt."""
        engine = _Watched(*_edge_script())
        cloud = self._network.cloud(self._client)
        parts = Parts(
            gate=_Open(),
            router=_Open(),
            adapters=_Open(),
            engine=engine,
            encode=lambda request: engine.tokenize(request.topic()),
            cloud=cloud,
            guard=lambda advise, _inspect: advise,
            fuse=_fuser(self._fuser, engine),
        )
        events = []
        async with aclosing(answer(self._request, parts)) as stream:
            async for event in stream:
                events.append(event)
        await cloud.close()
        drawn = [e.draw for e in events if isinstance(e, Token)]
        fed = list(engine.sessions[-1].tokens)[len(engine.tokenize(self._request.topic())) :]
        return drawn, events, fed


def _is_whole(events: Sequence[Event], drawn: Sequence[Draw], n_tokens: int) -> bool:
    """One start, `n_tokens` tokens, one end, and the text of exactly these tokens."""
    first, *middle, last = events
    text = "".join(e.text for e in events if isinstance(e, Token | Finished))
    return (
        isinstance(first, Started)
        and isinstance(last, Finished)
        and last.reason == "length"
        and last.completion_tokens == n_tokens == len(middle)
        and all(isinstance(e, Token) for e in middle)
        and text == b"".join(d.data for d in drawn).decode("utf-8", "replace")
    )


def _from_elsewhere(drawn: Sequence[Draw]) -> int:
    """Tokens of the SLM's own whose probability is not the one after the streamed text."""
    fed = _engine().tokenize("Tell me about snow")
    wrong = 0
    for draw in drawn:
        if draw.origin == "edge":
            was = float(_log_probs(False, tuple(fed))[draw.id])
            wrong += abs(was - draw.log_prob) > 1e-4
        fed.append(draw.id)
    return wrong


# --- the pair of models


def _edge_script() -> tuple[int, str]:
    return 1, _ANSWER.replace("an ant that went", "in an inn")


@functools.cache
def _engine(*, is_cloud: bool = False) -> ScriptedEngine:
    seed, text = (2, _ANSWER) if is_cloud else _edge_script()
    return ScriptedEngine(seed=seed, answers={"snow": text}, ended=0.0)


@functools.lru_cache(maxsize=100_000)
def _log_probs(is_cloud: bool, tokens: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return _engine(is_cloud=is_cloud).log_probs(tokens)


class _Watched(ScriptedEngine):
    """Remembers its sessions."""

    def __init__(self, seed: int, text: str) -> None:
        super().__init__(seed=seed, answers={"snow": text}, ended=0.0)
        self.sessions: list[Any] = []

    def log_probs(self, tokens: Sequence[int], *_adapters: Any) -> Any:
        """As the engine's own, from a memory that all answers share."""
        return _log_probs(False, tuple(tokens))

    def session(self, *args: Any, **options: Any) -> Any:
        """As the engine's own."""
        future = super().session(*args, **options)
        self.sessions.append(future.result())
        return future


class _Open:
    """A gate, a router and an adapter cache that have nothing to say."""

    def inspect(self, _texts: Sequence[tuple[str, str]], *, tenant: str = "") -> Verdict:  # noqa: ARG002 - a keyword of the protocol
        return _ALLOW

    def inspect_draft(self, _text: str, *, tenant: str = "") -> Verdict:  # noqa: ARG002 - a keyword of the protocol
        return _ALLOW

    def choose(self, _request: Request) -> Route:
        return Route()

    @asynccontextmanager
    async def lease(
        self, _route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AsyncIterator[Adapters]:
        assert expected_tokens > 0 and tenant
        yield ()


def _fuser(name: str, engine: ScriptedEngine) -> Fuse:
    info = engine.info
    common: dict[str, Any] = {
        "weight": _WEIGHT,
        "alignment": Alignment(
            token_bytes=[engine.token_bytes(i) for i in range(info.n_vocab)],
            eos_ids=info.eos_ids,
        ),
        "eos_ids": info.eos_ids,
        "token_bytes": engine.token_bytes,
    }
    if name == "token by token":
        return Fuser(budget_ms=BUDGET_MS, first_budget_ms=FIRST_BUDGET_MS, **common)
    limits = Limits(budget_ms=BUDGET_MS, first_budget_ms=FIRST_BUDGET_MS)
    if name == "speculative":
        return SpeculativeFuser(limits=limits, **common)
    return CloudDraftsFuser(
        limits=limits, tokenize=lambda data: engine.tokenize(data.decode("latin-1")), **common
    )


@functools.lru_cache(maxsize=10_000)
def _advice(text: bytes) -> Advice:
    """The cloud's top 20 after `text`; in its own words the text has its own tokens."""
    engine = _engine(is_cloud=True)
    fed = tuple(engine.tokenize("Tell me about snow")) + tuple(
        engine.tokenize(text.decode("latin-1"))
    )
    log_probs_V = _log_probs(True, fed)
    best = [int(i) for i in np.argsort(-log_probs_V, kind="stable")[:20]]
    candidates = tuple(
        Candidate(data=engine.token_bytes(i), log_prob=float(log_probs_V[i]))
        for i in best
        if engine.token_bytes(i)
    )
    return Advice(offset_bytes=len(text), candidates=candidates)
