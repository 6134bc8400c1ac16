"""Speculative fusion is the stream that asking at every place gives, only sooner. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fusion_generate import (
    CLOUD,
    EDGE,
    OTHER,
    PIECES,
    STEP_S,
    Run,
    advice_of,
    answering,
    fuser,
    ids,
    scoring,
)

from floe.core.advice import Advice
from floe.core.errors import CloudFailed
from floe.core.request import Sampling
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual

SLOW_MS = 60_000.0


def speculative(
    weight: float = 0.5,
    budget_ms: float = SLOW_MS,
    first_budget_ms: float = SLOW_MS,
    lookahead_tokens: int = 24,
    questions: int = 3,
) -> SpeculativeFuser:
    return SpeculativeFuser(
        weight=weight,
        limits=Limits(
            budget_ms=budget_ms,
            first_budget_ms=first_budget_ms,
            lookahead_tokens=lookahead_tokens,
            questions=questions,
        ),
        alignment=Alignment(token_bytes=PIECES, eos_ids=EDGE.info.eos_ids),
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
    )


def same(a: list[Draw], b: list[Draw]) -> None:
    assert ids(a) == ids(b)
    assert [d.origin for d in a] == [d.origin for d in b]
    assert [d.log_prob for d in a] == pytest.approx([d.log_prob for d in b])


@given(
    weight=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 2**32),
    delay_ms=st.sampled_from([0, 1, 7, 25, 80]),
    lookahead=st.integers(2, 24),
    questions=st.integers(1, 4),
    n_tokens=st.integers(1, 24),
)
@settings(max_examples=60, deadline=None)
def test_it_equals_token_by_token_fusion(
    weight: float,
    temperature: float,
    top_p: float,
    seed: int,
    delay_ms: int,
    lookahead: int,
    questions: int,
    n_tokens: int,
) -> None:
    sampling = Sampling(max_tokens=n_tokens, temperature=temperature, top_p=top_p, seed=seed)
    delay_s: Callable[[int], float] = lambda n: delay_ms / 1000  # noqa: E731
    fast = speculative(weight, lookahead_tokens=lookahead, questions=questions)
    drafted = run_virtual(Run().go(fast, sampling, answering(CLOUD, delay_s), top=3))
    asked = fuser(weight, budget_ms=SLOW_MS, first_budget_ms=SLOW_MS)
    wanted = run_virtual(Run().go(asked, sampling, answering(CLOUD, delay_s), top=3))
    same(drafted, wanted)
    assert [[t.id for t in d.top] for d in drafted] == [[t.id for t in d.top] for d in wanted]


@given(weight=st.sampled_from([0.0, 0.5]), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_jittering_answers_change_nothing(weight: float, seed: int) -> None:
    """Answers that overtake each other are sorted by their places."""
    sampling = Sampling(max_tokens=16, temperature=0.9, seed=seed)
    jitter: Callable[[int], float] = lambda n: ((n * 7919 + seed) % 90) / 1000  # noqa: E731
    drafted = run_virtual(Run().go(speculative(weight), sampling, answering(CLOUD, jitter)))
    wanted = run_virtual(
        Run().go(fuser(weight, SLOW_MS, SLOW_MS), sampling, answering(CLOUD, jitter))
    )
    same(drafted, wanted)


LONG = 40
SEED = next(
    s
    for s in range(1000)
    if len(
        run_virtual(Run().go(fuser(1.0), Sampling(max_tokens=LONG, temperature=1, seed=s), None))
    )
    == LONG
)
"""A seed with which the SLM alone does not end early."""


@pytest.mark.parametrize(("cloud", "at_least"), [(EDGE, 5.0), (CLOUD, 1.2)])
def test_it_is_faster_at_80_ms_a_round_trip(cloud: ScriptedEngine, at_least: float) -> None:
    """10 ms a step: with itself as the cloud every draft is kept, with another some are."""
    sampling = Sampling(max_tokens=LONG, temperature=1, seed=SEED)
    fast, slow = Run(), Run()
    far: Callable[[int], float] = lambda n: 0.08  # noqa: E731
    drafted = run_virtual(fast.go_in_blocks(speculative(0.8), sampling, scoring(cloud, far)))
    asked = fuser(0.8, SLOW_MS, SLOW_MS)
    wanted = run_virtual(slow.go_in_blocks(asked, sampling, scoring(cloud, far)))
    same(drafted, wanted)
    assert slow.times_s[-1] / fast.times_s[-1] >= at_least


def test_every_streamed_prefix_is_a_prefix_of_the_final_text() -> None:
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=9)
    run = Run()
    draws = run_virtual(run.go(speculative(0.2), sampling, answering(CLOUD, lambda n: 0.03)))
    assert draws == run.draws  # what was yielded is never taken back
    assert len(run.times_s) == len(draws)
    assert run.times_s == sorted(run.times_s)


@pytest.mark.parametrize("n_good", range(14))
def test_b40_b41_the_slm_goes_on_at_the_very_token_the_cloud_dies(n_good: int) -> None:
    """Questions about places from `n_good` bytes on fail: no repeat, no gap."""
    sampling = Sampling(max_tokens=14, temperature=0.9, seed=3)

    async def dying(text: bytes) -> Advice:
        await asyncio.sleep(0.02)
        if len(text) >= n_good:
            raise CloudFailed("cut")
        return advice_of(CLOUD, text)

    draws = run_virtual(Run().go(speculative(0.3), sampling, dying))
    assert len(draws) == 14
    dead = next((i for i, d in enumerate(draws) if d.origin == "edge"), 14)
    assert all(d.origin == "edge" for d in draws[dead:])
    alone = run_virtual(Run().go(speculative(1.0), sampling, None))
    if n_good == 0:
        same(draws, alone)


def test_a_black_hole_costs_one_budget() -> None:
    sampling = Sampling(max_tokens=20, seed=1)

    async def silent(_text: bytes) -> Advice:
        await asyncio.Event().wait()
        raise AssertionError("never")

    run, alone = Run(), Run()
    draws = run_virtual(run.go(speculative(0.3, 50, 200), sampling, silent))
    wanted = run_virtual(alone.go(speculative(1.0), sampling, None))
    same(draws, wanted)
    assert run.times_s[-1] <= alone.times_s[-1] + 0.2 + 2 * STEP_S


def test_no_token_waits_longer_than_its_budget() -> None:
    """Random stalls: each token comes within budget + one step of the one before it."""
    sampling = Sampling(max_tokens=40, temperature=0.9, seed=2)
    stalls: Callable[[int], float] = lambda n: 1.0 if n % 5 == 0 else 0.01  # noqa: E731
    run = Run()
    run_virtual(run.go(speculative(0.4, 60, 60), sampling, answering(CLOUD, stalls)))
    gaps = [b - a for a, b in zip(run.times_s, run.times_s[1:], strict=False)]
    assert max(gaps) <= 0.060 + 2 * STEP_S + 1e-9


def test_a_late_score_serves_the_places_behind_it() -> None:
    """Answers after 20 ms, then one after 60 with a budget of 30: it still serves its block."""
    sampling = Sampling(max_tokens=LONG, temperature=1, seed=SEED)
    delays: Callable[[int], float] = lambda n: 0.06 if n == 5 else 0.04  # noqa: E731
    run = speculative(0.9, 30, 200)
    origins = [
        d.origin for d in run_virtual(Run().go_in_blocks(run, sampling, scoring(EDGE, delays)))
    ]
    missed = origins.index("edge")
    assert "fused" in origins[missed:]


@given(seed=st.integers(0, 2**32), n_tokens=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_alone_it_decodes_not_one_token_more_than_needed(seed: int, n_tokens: int) -> None:
    run = Run()
    draws = run_virtual(
        run.go(speculative(1.0), Sampling(max_tokens=n_tokens, temperature=1.0, seed=seed), None)
    )
    wanted = run_virtual(
        Run().go(fuser(1.0), Sampling(max_tokens=n_tokens, temperature=1.0, seed=seed), None)
    )
    same(draws, wanted)
    assert run.steps <= n_tokens - 1


@given(seed=st.integers(0, 2**32), weight=st.sampled_from([0.0, 0.4]))
@settings(max_examples=25, deadline=None)
def test_another_tokenizer_repeats_and_loses_nothing(seed: int, weight: float) -> None:
    """The SLM under the streamed text gives the same numbers: it was rolled back right."""
    sampling = Sampling(max_tokens=16, temperature=0.9, seed=seed)
    draws = run_virtual(Run().go(speculative(weight), sampling, answering(OTHER, lambda n: 0.02)))
    fed = EDGE.tokenize("Tell me about snow")
    for draw in draws:
        if draw.origin == "edge":
            assert draw.log_prob == pytest.approx(float(EDGE.log_probs(fed)[draw.id]), abs=1e-4)
        fed.append(draw.id)
