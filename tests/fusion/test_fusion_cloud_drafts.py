"""A drafting cloud's text checked in chunks gives the stream of asking place by place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fusion_generate import (
    CLOUD,
    EDGE,
    OTHER,
    PIECES,
    PROMPT,
    STEP_S,
    advice_of,
    answering,
    fuser,
    ids,
    in_blocks,
)

from floe.answer import Fuse
from floe.core.advice import Advice, Advise, Drafting, Question
from floe.core.errors import CloudFailed, FloeError
from floe.core.request import Request, Sampling
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.speculate import Limits
from floe.fusion.weigh import Seen, Weigh
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual

SLOW_MS = 60_000.0
SURE = ScriptedEngine(seed=7, answers={"snow": "It is white and cold, and the 42 in it is an ant."})
LIKE = ScriptedEngine(seed=8, answers={"snow": "It is white and cold, and the 42 in it is odd."})


def tokenize(data: bytes) -> list[int]:
    return EDGE.tokenize(data.decode("latin-1")) if data.isascii() else []


def drafts(
    weight: float | Weigh = 0.5,
    budget_ms: float = SLOW_MS,
    first_budget_ms: float = SLOW_MS,
    edge: ScriptedEngine = EDGE,
    most: int = 24,
    spell: Callable[[bytes], Sequence[int]] = tokenize,
) -> CloudDraftsFuser:
    return CloudDraftsFuser(
        weight=weight,
        limits=Limits(budget_ms=budget_ms, first_budget_ms=first_budget_ms, lookahead_tokens=most),
        alignment=Alignment(token_bytes=PIECES, eos_ids=edge.info.eos_ids),
        eos_ids=edge.info.eos_ids,
        token_bytes=edge.token_bytes,
        tokenize=spell,
    )


class Run:
    """One stream whose steps and chunks take STEP_S each; the engine is checked at its end."""

    def __init__(self, edge: ScriptedEngine = EDGE) -> None:
        self.edge = edge
        self.draws: list[Draw] = []
        self.times_s: list[float] = []
        self.steps: list[int] = []

    async def go(
        self, fuse: Fuse, sampling: Sampling, advise: Advise | None, *, many: bool = True
    ) -> list[Draw]:
        loop = asyncio.get_running_loop()
        session = self.edge.session().result()

        def soon(tokens: Sequence[int], *, every: bool = False) -> asyncio.Future:
            self.steps.append(len(tokens))
            future = loop.create_future()
            value = session.feed(tokens, every=every)
            loop.call_later(STEP_S, lambda: future.done() or future.set_result(value))
            return future

        drafting = Drafting(
            step=lambda token: soon([token]),
            rollback=session.rollback,
            feed_many=(lambda tokens: soon(tokens, every=True)) if many else None,
        )
        request = Request(id="r", prompt=PROMPT, sampling=sampling)
        prompt = self.edge.tokenize(PROMPT)
        first = soon(prompt)
        self.steps.clear()
        async with aclosing(fuse(request, first, drafting, advise)) as draws:
            async for draw in draws:
                self.draws.append(draw)
                self.times_s.append(loop.time())
        drawn = prompt + ids(self.draws)
        # one proposal too many at most where the end was drawn, never a token out of its order
        fed = list(session.tokens)
        assert fed[: len(drawn) - 1] == drawn[:-1]
        if len(self.draws) == sampling.max_tokens:
            assert fed == drawn[:-1]
        session.close()
        assert len(asyncio.all_tasks()) == 1, "a question was left running"
        return self.draws


class Speaker:
    """A cloud that speaks along its own greedy answer, a token every `token_s` from `first_s` on.

    `cut_at`: the stream breaks before that token. `stall`: (token, seconds) of extra silence.
    """

    def __init__(
        self,
        cloud: ScriptedEngine,
        *,
        first_s: float = 0.05,
        token_s: float = 0.004,
        cut_at: int | None = None,
        stall: tuple[int, float] = (0, 0.0),
        n_tokens: int = 60,
    ) -> None:
        self.places: list[Advice] = []
        self.text, self.asked = b"", 0
        self.cut_at, self.started_s = cut_at, -1.0
        for _ in range(n_tokens):
            advice = advice_of(cloud, self.text)
            best = advice.candidates[0]
            self.places.append(
                Advice(offset_bytes=len(self.text), candidates=advice.candidates, said=best.data)
            )
            self.text += best.data
            if best.end:
                break
        late = [stall[1] if i >= stall[0] else 0.0 for i in range(len(self.places))]
        self.at_s = [first_s + i * token_s + late[i] for i in range(len(self.places))]

    async def __call__(self, question: Question) -> tuple[Advice, ...]:
        loop = asyncio.get_running_loop()
        self.asked += 1
        if self.started_s < 0:
            self.started_s = loop.time()
        if not self.text.startswith(question.answer):
            return ()
        here = len(question.answer)
        for i, place in enumerate(self.places):
            if i == self.cut_at:
                raise CloudFailed("the stream was cut")
            wait_s = self.started_s + self.at_s[i] - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if place.offset_bytes + len(place.said) > here or place.offset_bytes == here:
                break
        else:
            return ()
        now_s = loop.time() - self.started_s + 1e-9
        there = [
            p
            for i, (p, at_s) in enumerate(zip(self.places, self.at_s, strict=True))
            if at_s <= now_s and (self.cut_at is None or i < self.cut_at)
        ]
        most = here + question.ahead_bytes
        found = [p for p in there if here <= p.offset_bytes <= most]
        if question.ahead_bytes and (not found or found[0].offset_bytes > here):
            inside = next(p for p in reversed(there) if p.offset_bytes < here)
            rest = inside.said[here - inside.offset_bytes :]
            found.insert(0, Advice(offset_bytes=here, candidates=(), said=rest))
        return tuple(
            found if question.ahead_bytes else [p for p in found if p.offset_bytes == here]
        )


def same(a: list[Draw], b: list[Draw]) -> None:
    assert ids(a) == ids(b)
    assert [d.origin for d in a] == [d.origin for d in b]
    assert [d.log_prob for d in a] == pytest.approx([d.log_prob for d in b], abs=1e-5)


def as_sure(seen: Seen) -> float:
    """The SLM's share where it is sure."""
    return float(np.exp(seen.log_q_V.max()))


@given(
    weight=st.sampled_from([0.0, 0.2, 0.5, 0.9, as_sure]),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 2**32),
    cloud=st.sampled_from([CLOUD, SURE, LIKE, OTHER, EDGE]),
    edge=st.sampled_from([EDGE, SURE]),
    token_s=st.sampled_from([0.0, 0.003, 0.03]),
    most=st.integers(1, 24),
    many=st.booleans(),
    n_tokens=st.integers(1, 30),
)
@settings(max_examples=80, deadline=None)
def test_it_equals_token_by_token_fusion(
    weight: float | Weigh,
    temperature: float,
    top_p: float,
    seed: int,
    cloud: ScriptedEngine,
    edge: ScriptedEngine,
    token_s: float,
    most: int,
    many: bool,
    n_tokens: int,
) -> None:
    sampling = Sampling(max_tokens=n_tokens, temperature=temperature, top_p=top_p, seed=seed)
    checked = run_virtual(
        Run(edge).go(
            drafts(weight, edge=edge, most=most),
            sampling,
            Speaker(cloud, token_s=token_s),
            many=many,
        )
    )
    asked = fuser(weight, SLOW_MS, SLOW_MS)
    wanted = run_virtual(Run(edge).go(asked, sampling, Speaker(cloud, token_s=token_s)))
    same(checked, wanted)


@given(seed=st.integers(0, 2**32), rng=st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_whatever_is_proposed_changes_no_token(seed: int, rng) -> None:
    """A tokenizer that guesses badly, in odd pieces or with other bytes, costs time only."""

    def odd(data: bytes) -> list[int]:
        return [rng.choice([data[i], rng.randrange(len(PIECES))]) for i in range(len(data))]

    sampling = Sampling(max_tokens=25, temperature=0.6, seed=seed)
    checked = run_virtual(Run(SURE).go(drafts(0.4, edge=SURE, spell=odd), sampling, Speaker(LIKE)))
    wanted = run_virtual(Run(SURE).go(fuser(0.4, SLOW_MS, SLOW_MS), sampling, Speaker(LIKE)))
    same(checked, wanted)


@given(seed=st.integers(0, 2**32), cloud=st.sampled_from([CLOUD, OTHER]))
@settings(max_examples=20, deadline=None)
def test_a_cloud_that_does_not_draft_is_asked_place_by_place(
    seed: int, cloud: ScriptedEngine
) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=seed)
    scoring = in_blocks(answering(cloud, lambda n: 0.02))
    run = Run()
    checked = run_virtual(run.go(drafts(), sampling, scoring))
    wanted = run_virtual(Run().go(fuser(0.5, SLOW_MS, SLOW_MS), sampling, scoring))
    same(checked, wanted)
    assert set(run.steps) <= {1}


def test_a_text_both_agree_on_is_checked_in_chunks() -> None:
    """Once the cloud runs ahead a chunk takes one step, and few questions are asked."""
    sampling = Sampling(max_tokens=40)
    run, slow = Run(SURE), Run(SURE)
    speaker = Speaker(SURE, token_s=0.001)
    run_virtual(run.go(drafts(edge=SURE), sampling, speaker))
    run_virtual(slow.go(fuser(0.5, SLOW_MS, SLOW_MS), sampling, Speaker(SURE, token_s=0.001)))
    assert ids(run.draws) == ids(slow.draws)
    assert max(run.steps) > 8 and len(run.steps) < len(slow.steps) / 2
    assert run.times_s[-1] < slow.times_s[-1] / 2 and speaker.asked <= 8


def test_after_a_miss_chunks_are_short() -> None:
    class Parrot(Speaker):
        """Says what the SLM never says, but is given no weight."""

    run = Run()
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=3)
    run_virtual(run.go(drafts(0.999), sampling, Parrot(CLOUD, token_s=0.0)))
    assert run.steps[0] <= 5 and max(run.steps[1:], default=0) <= 2


@pytest.mark.parametrize("cut_at", range(20))
def test_b40_b41_a_stream_cut_before_any_token_leaves_no_repeat_and_no_gap(cut_at: int) -> None:
    sampling = Sampling(max_tokens=18, temperature=0.5, seed=11)
    cut = Speaker(LIKE, cut_at=cut_at)
    draws = run_virtual(Run(SURE).go(drafts(0.5, edge=SURE), sampling, cut))
    wanted = run_virtual(
        Run(SURE).go(fuser(0.5, SLOW_MS, SLOW_MS), sampling, Speaker(LIKE, cut_at=cut_at))
    )
    same(draws, wanted)
    fed = SURE.tokenize(PROMPT)
    for draw in draws:
        if draw.origin == "edge":
            assert draw.log_prob == pytest.approx(float(SURE.log_probs(fed)[draw.id]), abs=1e-4)
        fed.append(draw.id)


def test_a_black_hole_costs_one_first_budget_and_nothing_after() -> None:
    async def silent(_question: Question) -> tuple[Advice, ...]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    run = Run()
    sampling = Sampling(max_tokens=6, temperature=1.0, seed=2)
    draws = run_virtual(run.go(drafts(0.3, 50, 200), sampling, silent))
    same(draws, run_virtual(Run().go(fuser(1.0), sampling, None)))
    assert run.times_s == pytest.approx([STEP_S + 0.2 + i * STEP_S for i in range(6)])


def test_no_token_waits_longer_than_its_budget_and_a_late_stream_is_used_again() -> None:
    sampling = Sampling(max_tokens=30)
    run = Run(SURE)
    speaker = Speaker(SURE, token_s=0.002, stall=(6, 0.12))
    draws = run_virtual(run.go(drafts(0.5, 50, 500, edge=SURE), sampling, speaker))
    gaps = [b - a for a, b in zip(run.times_s, run.times_s[1:], strict=False)]
    assert max(gaps) <= 0.050 + STEP_S + 1e-9
    origins = [d.origin for d in draws]
    missed = origins.index("edge")
    assert "fused" in origins[missed:] and missed >= 6


def test_alone_or_at_weight_one_it_is_the_slm_and_asks_nothing() -> None:
    async def never(_question: Question) -> tuple[Advice, ...]:
        raise AssertionError("the cloud was asked for nothing")

    sampling = Sampling(max_tokens=15, temperature=1.0, seed=4)
    alone = run_virtual(Run().go(drafts(), sampling, None))
    same(alone, run_virtual(Run().go(drafts(1.0), sampling, never)))
    same(alone, run_virtual(Run().go(fuser(1.0), sampling, None)))


def test_closing_cancels_the_question_and_the_chunk() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        async def hanging(question: Question) -> tuple[Advice, ...]:
            if not question.answer:
                advice = advice_of(SURE, b"")
                said = advice.candidates[0].data
                return (Advice(offset_bytes=0, candidates=advice.candidates, said=said + b" is"),)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError("nobody sets the event")

        loop = asyncio.get_running_loop()
        first, fed = loop.create_future(), []

        def feed(tokens: object) -> asyncio.Future:
            fed.append(loop.create_future())
            return fed[-1]

        first.set_result(SURE.log_probs(SURE.tokenize(PROMPT)))
        drafting = Drafting(step=feed, rollback=lambda n: None, feed_many=feed)
        request = Request(id="r", prompt=PROMPT)
        draws = drafts(0.2, edge=SURE)(request, first, drafting, hanging)
        await anext(draws)
        waiting = asyncio.ensure_future(anext(draws))
        for _ in range(4):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert fed[-1].cancelled()
        await draws.aclose()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_the_engines_error_ends_the_stream() -> None:
    async def main() -> None:
        first = asyncio.get_running_loop().create_future()
        first.set_exception(FloeError("the engine failed"))
        drafting = Drafting(step=lambda t: first, rollback=lambda n: None)
        with pytest.raises(FloeError, match="the engine failed"):
            await anext(drafts()(Request(id="r", prompt=PROMPT), first, drafting, Speaker(SURE)))
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_a_bug_in_a_client_is_not_taken_for_a_lost_cloud() -> None:
    async def bug(_question: Question) -> tuple[Advice, ...]:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_virtual(Run().go(drafts(), Sampling(), bug))
