"""The cloud of the fusion benchmark: recorded by prefix and replayed, or live on this machine.

T = tokens fed, V = the cloud's vocabulary.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import wrap_future
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import numpy as np

from floe.cloud.wire import LogitRequest, LogitResponse, dump_request, dump_response
from floe.core.advice import Advice, Advise, Candidate, Question
from floe.core.request import Request
from floe.engine.base import Engine, FloatArray

Candidates = tuple[Candidate, ...]


class HeldLoop(asyncio.SelectorEventLoop):
    """An event loop in real time, less what was spent inside `held`."""

    _held_s = 0.0

    def time(self) -> float:
        """Seconds, as asyncio and the benchmark see them."""
        return time.monotonic() - self._held_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """No time passes in this block; it must not await."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._held_s += time.monotonic() - began_s


class CloudRecord:
    """What the cloud says after a prompt, by the tokens of the answer; computed on a miss.

    A miss is computed at once on the caller's thread, inside `HeldLoop.held` where there is one:
    it takes no time of the benchmark's. `misses` counts them, `questions` all. `tokenizer` is
    put on the advice (empty: the SLM's own). `exact`: the cloud has the SLM's tokenizer and
    follows its very tokens.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        prompt: Sequence[int],
        top_k: int,
        tokenizer: str = "",
        exact: bool = False,
    ) -> None:
        self._by_bytes = _ids_by_bytes(engine) if exact else None
        self._engine, self._prompt, self._top_k = engine, list(prompt), top_k
        self._tokenizer = tokenizer
        self._rows: dict[tuple[int, ...], Candidates] = {}
        self.questions = self.misses = 0

    def advice(self, question: Question) -> tuple[Advice, ...]:
        """As the logit service answers: the end of `answer` and the cloud's ends in `draft`."""
        self.questions += 1
        ids, places = self._places(question)
        if any(tuple(ids[:n]) not in self._rows for n, _ in places):
            self.misses += 1
            with _held():
                self._compute(ids, places)
        return tuple(
            Advice(
                offset_bytes=offset,
                candidates=self._rows[tuple(ids[:n])],
                tokenizer=self._tokenizer,
            )
            for n, offset in places
        )

    def _places(self, question: Question) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of the text and (ids before it, bytes before it) of each place."""
        if self._by_bytes is not None:
            cuts = (0, *question.ends)
            own = [self._by_bytes[question.text[a:b]] for a, b in pairwise(cuts)]
            return own, [(n, c) for n, c in enumerate(cuts) if c >= len(question.answer)]
        text = _whole_characters(question.text)
        ids = self._engine.tokenize(text.decode())
        pieces = [self._engine.token_bytes(i) for i in ids]
        if b"".join(pieces) != text:
            return ids, []
        ends = [0, *accumulate(map(len, pieces))]
        return ids, [(n, end) for n, end in enumerate(ends) if end >= len(question.answer)]

    def _compute(self, ids: list[int], places: Sequence[tuple[int, int]]) -> None:
        for (n, _), found in zip(places, self._scored(ids, places), strict=True):
            self._rows.setdefault(tuple(ids[:n]), found)

    def _scored(self, ids: list[int], places: Sequence[tuple[int, int]]) -> list[Candidates]:
        first, last = places[0][0], places[-1][0]
        fed = [*self._prompt, *ids[:last]]
        session = self._engine.session(prompt=fed, max_tokens=len(fed)).result()
        try:
            rows = [session.feed([*self._prompt, *ids[:first]])]
            if last > first:
                rows.extend(session.feed(ids[first:last], every=True))
        finally:
            session.close()
        return [self._best(row_V) for row_V in rows]

    def _best(self, log_probs_V: FloatArray) -> Candidates:
        k = min(self._top_k, len(log_probs_V))
        some = np.argpartition(log_probs_V, -k)[-k:]
        order = some[np.argsort(-log_probs_V[some], kind="stable")]
        eos = self._engine.info.eos_ids
        found = (
            Candidate(
                data=b"" if i in eos else self._engine.token_bytes(i),
                log_prob=float(log_probs_V[i]),
                end=i in eos,
            )
            for i in map(int, order)
        )
        return tuple(c for c in found if c.end or c.data)

    def live(self) -> Advise:
        """The same cloud, always computed, while the stream goes on: both share this machine.

        A question that is given up leaves the engine, as it does in the logit service.
        """

        async def advise(question: Question) -> tuple[Advice, ...]:
            ids, places = self._places(question)
            if not places:
                return ()
            first, last = places[0][0], places[-1][0]
            fed = [*self._prompt, *ids[:last]]
            session = await wrap_future(self._engine.session(prompt=fed, max_tokens=len(fed)))
            try:
                rows = [await wrap_future(session.submit([*self._prompt, *ids[:first]]))]
                if last > first:
                    rows_TV = await wrap_future(session.submit(ids[first:last], every=True))
                    rows.extend(rows_TV)
            finally:
                session.close()
            return tuple(
                Advice(offset_bytes=offset, candidates=self._best(row_V), tokenizer=self._tokenizer)
                for (_, offset), row_V in zip(places, rows, strict=True)
            )

        return advise


@contextmanager
def _held() -> Iterator[None]:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if isinstance(loop, HeldLoop):
        with loop.held():
            yield
    else:
        yield


def replayed(record: CloudRecord, *, compute_ms: float) -> Advise:
    """A cloud on a machine of its own, each call of which takes `compute_ms`."""

    async def advise(question: Question) -> tuple[Advice, ...]:
        found = record.advice(question)
        await asyncio.sleep(compute_ms / 1000)
        return found

    return advise


class Traffic:
    """Counts the bytes that questions and answers have on the wire, without their headers."""

    def __init__(self) -> None:
        self.up_bytes = self.down_bytes = self.questions = 0

    def counted(self, advise: Advise, request: Request, *, top_k: int) -> Advise:
        """`advise`, with its bytes counted as /v1/logits would carry them."""

        async def ask(question: Question) -> tuple[Advice, ...]:
            asked = LogitRequest(
                messages=request.messages,
                prompt=request.prompt,
                answer=question.answer,
                draft=question.draft,
                top_k=top_k,
            )
            self.questions += 1
            self.up_bytes += len(dump_request(asked))
            found = await advise(question)
            answer = LogitResponse(model="", tokenizer_digest="", positions=found)
            self.down_bytes += len(dump_response(answer))
            return found

        return ask


def _ids_by_bytes(engine: Engine) -> dict[bytes, int]:
    return {engine.token_bytes(i): i for i in reversed(range(engine.info.n_vocab))}


def _whole_characters(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data
