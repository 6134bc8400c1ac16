"""The gate before asking: sure places are the SLM's own, and nothing else changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fusion_generate import CLOUD, EDGE, PIECES, Run, fuser, ids, scoring
from test_fusion_speculate import SLOW_MS, same

from floe.core.advice import Advice, Advise, Question
from floe.core.request import Sampling
from floe.fusion.align import Alignment
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.testing.virtual_time import run_virtual


def gated(least: float, lookahead: int = 24, questions: int = 6) -> SpeculativeFuser:
    """Sure where the SLM's best token has a probability of `least`."""
    return SpeculativeFuser(
        weight=0.4,
        limits=Limits(
            budget_ms=SLOW_MS,
            first_budget_ms=SLOW_MS,
            lookahead_tokens=lookahead,
            questions=questions,
        ),
        alignment=Alignment(token_bytes=PIECES, eos_ids=EDGE.info.eos_ids),
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
        is_sure=lambda log_q_V: float(np.exp(log_q_V.max())) >= least,
    )


def counted(advise: Advise, asked: list[Question]) -> Advise:
    async def ask(question: Question) -> tuple[Advice, ...]:
        asked.append(question)
        return await advise(question)

    return ask


SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, lookahead=st.integers(2, 24), questions=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_pace_does_not_change_what_a_gated_stream_says(
    seed: int, lookahead: int, questions: int
) -> None:
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=seed)
    cloud = scoring(CLOUD, lambda n: 0.03)
    one = run_virtual(Run().go_in_blocks(gated(0.3, lookahead, questions), sampling, cloud))
    other = run_virtual(Run().go_in_blocks(gated(0.3, 2, 1), sampling, cloud))
    same(one, other)


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_sure_everywhere_is_the_slm_alone_and_asks_nothing(seed: int) -> None:
    sampling, asked = Sampling(max_tokens=20, temperature=1.0, seed=seed), list[Question]()
    cloud = counted(scoring(CLOUD, lambda n: 0.03), asked)
    draws = run_virtual(Run().go_in_blocks(gated(0.0), sampling, cloud))
    assert ids(draws) == ids(run_virtual(Run().go(fuser(1.0), sampling, None)))
    assert not asked and {d.origin for d in draws} <= {"edge"}


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_sure_nowhere_is_fusion_everywhere(seed: int) -> None:
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=seed)
    cloud = scoring(CLOUD, lambda n: 0.03)
    draws = run_virtual(Run().go_in_blocks(gated(2.0), sampling, cloud))
    same(draws, run_virtual(Run().go_in_blocks(fuser(0.4, SLOW_MS, SLOW_MS), sampling, cloud)))


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_every_sure_place_is_the_edges_and_every_other_is_asked(seed: int) -> None:
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=seed)
    cloud = scoring(CLOUD, lambda n: 0.03)
    draws = run_virtual(Run().go_in_blocks(gated(0.3), sampling, cloud))
    fed = EDGE.tokenize("Tell me about snow")
    for draw in draws:
        sure = float(np.exp(np.max(EDGE.log_probs(fed)))) >= 0.3
        assert (draw.origin == "edge") == sure
        fed.append(draw.id)
