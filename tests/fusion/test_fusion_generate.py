"""Fused decoding against a slow twin, on pairs of scripted engines, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.answer import Fuse
from floe.core.advice import Advice, Advise, Candidate, Drafting, Question
from floe.core.errors import CloudFailed, FloeError
from floe.core.request import Request, Sampling
from floe.core.token import Draw
from floe.fusion.align import Alignment
from floe.fusion.generate import Fuser
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual

PROMPT = "Tell me about snow"
STEP_S = 0.010
EDGE = ScriptedEngine(seed=1)
CLOUD = ScriptedEngine(seed=2)
OTHER = ScriptedEngine(seed=3, merges=(b"he", b" th", b"is ", b"and", b"   "))
PIECES = [EDGE.token_bytes(i) for i in range(EDGE.info.n_vocab)]


def candidates(cloud: ScriptedEngine, text: bytes, k: int = 64) -> list[tuple[bytes, float, bool]]:
    """What the cloud says after `text`: its tokens are those of the same bytes."""
    tokens = cloud.tokenize(PROMPT) + cloud.tokenize(text.decode("latin-1"))
    log_p = cloud.log_probs(tokens)
    order = sorted(range(len(log_p)), key=lambda i: -log_p[i])[:k]
    eos = cloud.info.eos_ids
    return [
        (cloud.token_bytes(i), float(log_p[i]), i in eos)
        for i in order
        if cloud.token_bytes(i) or i in eos
    ]


def advice_of(cloud: ScriptedEngine, text: bytes) -> Advice:
    return Advice(
        offset_bytes=len(text),
        candidates=tuple(
            Candidate(data=d, log_prob=p, end=e) for d, p, e in candidates(cloud, text)
        ),
    )


Said = list[tuple[bytes, float, bool]]


def longest(data: bytes) -> int:
    starts = [i for i, piece in enumerate(PIECES) if piece and data.startswith(piece)]
    return max(starts, key=lambda i: len(PIECES[i]))


def slow_p(said: Said, log_q: np.ndarray) -> list[float]:
    """The cloud on the SLM's ids, in plain loops (see Alignment.cloud_probs)."""
    p = [0.0] * len(PIECES)
    eos = max(sorted(EDGE.info.eos_ids), key=lambda i: log_q[i])
    for data, log_prob, end in said:
        p[eos if end else longest(data)] += math.exp(log_prob)
    sent, q = list(p), [math.exp(x) for x in log_q]
    missing, rest = 1.0 - sum(sent), sum(q[i] for i in range(len(p)) if not sent[i])
    if missing > 1e-6:
        least = min(x for x in sent if x)
        p = [s or min(missing * q[i] / rest, least) for i, s in enumerate(sent)]
    return [x / sum(p) for x in p]


def slow_rest(said: Said, token: int) -> Said:
    """The cloud's words that began with the drawn token, as (what is left, share)."""
    mine = [(d, math.exp(p)) for d, p, end in said if not end and longest(d) == token]
    total = sum(p for _, p in mine)
    return [(d[len(PIECES[token]) :], p / total, False) for d, p in mine]


def slow_said(cloud: ScriptedEngine, text: bytes, rest: Said) -> Said:
    """What the cloud says next: the rests, and new words as far as a word ended here."""
    fresh = sum(share for d, share, _ in rest if not d) if any(d for d, *_ in rest) else 1.0
    begun = [(d, math.log(share), False) for d, share, _ in rest if d]
    new = candidates(cloud, text) if fresh else []
    return begun + [(d, p + math.log(fresh), end) for d, p, end in new]


def oracle(
    weight: float, sampling: Sampling, cloud_at: Callable[[int], ScriptedEngine | None]
) -> tuple[list[int], list[str], list[float]]:
    """Token-by-token fusion with dense lists; `cloud_at(i)` answers at token i or is None."""
    rng = np.random.default_rng(sampling.seed)
    fed, text = EDGE.tokenize(PROMPT), b""
    rest: Said = []
    ids: list[int] = []
    origins: list[str] = []
    log_probs: list[float] = []
    for i in range(sampling.max_tokens):
        log_q = EDGE.log_probs(fed)
        q = [math.exp(x) for x in log_q]
        cloud = cloud_at(i)
        f = q
        if cloud is not None:
            said = slow_said(cloud, text, rest)
            p = slow_p(said, log_q)
            f = [weight * a + (1 - weight) * b for a, b in zip(q, p, strict=True)]
        if sampling.temperature == 0:
            edge, token = int(np.argmax(q)), int(np.argmax(f))
        else:
            edge, token = slow_couple(q, f, sampling.temperature, rng.random())
        if token in EDGE.info.eos_ids:
            break
        ids.append(token)
        origins.append("edge" if cloud is None else "fused" if token == edge else "cloud")
        log_probs.append(math.log(f[token]))
        rest = slow_rest(said, token) if cloud is not None else []
        fed, text = [*fed, token], text + PIECES[token]
    return ids, origins, log_probs


def slow_couple(q: list[float], f: list[float], temperature: float, u: float) -> tuple[int, int]:
    qt = [x ** (1 / temperature) for x in q]
    ft = [x ** (1 / temperature) for x in f]
    qt, ft = [x / sum(qt) for x in qt], [x / sum(ft) for x in ft]

    def under(weights: list[float], u: float) -> tuple[int, float]:
        at = u * sum(weights)
        for i, w in enumerate(weights):
            if at < w:
                return i, at / w
            at -= w
        raise AssertionError("u below 1 lies in some interval")

    edge, rest = under(qt, u)
    kept = min(1.0, ft[edge] / qt[edge])
    if rest < kept or ft == qt:
        return edge, edge
    excess = [max(b - a, 0.0) for a, b in zip(qt, ft, strict=True)]
    return edge, under(excess, (rest - kept) / (1 - kept))[0]


def fuser(weight: float = 0.5, budget_ms: float = 50.0, first_budget_ms: float = 500.0) -> Fuser:
    return Fuser(
        weight=weight,
        budget_ms=budget_ms,
        first_budget_ms=first_budget_ms,
        alignment=Alignment(token_bytes=PIECES, eos_ids=EDGE.info.eos_ids),
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
    )


def nothing(_n: int) -> None:
    """A rollback where none is called."""


class Run:
    """One stream with the SLM's steps taking STEP_S of virtual time; `times_s` of each token."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.times_s: list[float] = []
        self.steps = 0

    async def go(
        self, fuse: Fuse, sampling: Sampling, advise: Ask | None, top: int = 0
    ) -> list[Draw]:
        """The stream with a cloud that is asked about one place at a time."""
        return await self.go_in_blocks(fuse, sampling, in_blocks(advise) if advise else None, top)

    async def go_in_blocks(
        self, fuse: Fuse, sampling: Sampling, advise: Advise | None, top: int = 0
    ) -> list[Draw]:
        loop = asyncio.get_running_loop()
        session = EDGE.session().result()

        def soon(tokens: list[int]) -> asyncio.Future:
            future = loop.create_future()
            value = session.feed(tokens)
            loop.call_later(STEP_S, lambda: future.done() or future.set_result(value))
            return future

        def step(token: int) -> asyncio.Future:
            self.steps += 1
            return soon([token])

        request = Request(id="r", prompt=PROMPT, sampling=sampling, top_log_probs=top)
        drafting = Drafting(step=step, rollback=session.rollback)
        first = soon(EDGE.tokenize(PROMPT))
        async with aclosing(fuse(request, first, drafting, advise)) as draws:
            async for draw in draws:
                self.draws.append(draw)
                self.times_s.append(loop.time())
        session.close()
        assert len(asyncio.all_tasks()) == 1, "a question was left running"
        return self.draws


Ask = Callable[[bytes], Awaitable[Advice | None]]
"""A cloud that is asked about one place at a time."""


def in_blocks(ask: Ask) -> Advise:
    """`ask` at the place after the answer and at every end of a token in the draft."""

    async def advise(question: Question) -> tuple[Advice, ...]:
        start = len(question.answer)
        places = [start, *(end for end in question.ends if end > start)]
        found = [await ask(question.text[:place]) for place in places]
        return tuple(a for a in found if a is not None)

    return advise


def scoring(cloud: ScriptedEngine, delay_s: Callable[[int], float]) -> Advise:
    """A cloud that answers its nth question, however long, after `delay_s(n)`."""
    asked = 0

    async def advise(question: Question) -> tuple[Advice, ...]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(delay_s(asked))
        return await in_blocks(answering(cloud))(question)

    return advise


def answering(cloud: ScriptedEngine, delay_s: Callable[[int], float] = lambda n: 0.0) -> Ask:
    asked = 0

    async def advise(text: bytes) -> Advice:
        nonlocal asked
        asked += 1
        await asyncio.sleep(delay_s(asked))
        return advice_of(cloud, text)

    return advise


def ids(draws: list[Draw]) -> list[int]:
    return [d.id for d in draws]


@given(
    weight=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    seed=st.integers(0, 2**32),
    cloud=st.sampled_from([CLOUD, OTHER]),
)
@settings(max_examples=25, deadline=None)
def test_the_stream_equals_dense_fusion(
    weight: float, temperature: float, seed: int, cloud: ScriptedEngine
) -> None:
    sampling = Sampling(max_tokens=12, temperature=temperature, seed=seed)
    draws = run_virtual(Run().go(fuser(weight), sampling, answering(cloud)))
    wanted_ids, origins, log_probs = oracle(weight, sampling, lambda i: cloud)
    assert ids(draws) == wanted_ids
    assert [d.origin for d in draws] == origins
    assert [d.log_prob for d in draws] == pytest.approx(log_probs, abs=1e-4)
    assert [d.data for d in draws] == [PIECES[i] for i in wanted_ids]


def test_a_word_of_the_clouds_is_finished_without_asking_inside_it() -> None:
    asked: list[bytes] = []

    async def advise(text: bytes) -> Advice:
        asked.append(text)
        word = Candidate(data=b"step-by-step!" if not text else b"#", log_prob=-0.01)
        return Advice(offset_bytes=len(text), candidates=(word,))

    draws = run_virtual(Run().go(fuser(0.0), Sampling(max_tokens=15), advise))
    assert b"".join(d.data for d in draws) == b"step-by-step!##"
    assert asked == [b"", b"step-by-step!", b"step-by-step!#"]
    assert "edge" not in {d.origin for d in draws}


@given(temperature=st.sampled_from([0.0, 0.7, 1.0]), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_weight_one_is_the_slm_and_does_not_ask(temperature: float, seed: int) -> None:
    async def never(text: bytes) -> Advice:
        raise AssertionError("the cloud was asked for nothing")

    sampling = Sampling(max_tokens=20, temperature=temperature, seed=seed)
    alone = run_virtual(Run().go(fuser(0.5), sampling, None))
    assert run_virtual(Run().go(fuser(1.0), sampling, never)) == alone
    assert {d.origin for d in alone} <= {"edge"}


def test_at_weight_zero_and_temperature_zero_it_is_the_cloud() -> None:
    text, wanted = b"", []
    for _ in range(20):
        data, _, end = candidates(CLOUD, text)[0]
        if end:
            break
        wanted.append(data)
        text += data
    draws = run_virtual(Run().go(fuser(0.0), Sampling(max_tokens=20), answering(CLOUD)))
    assert [d.data for d in draws] == wanted


def test_the_cloud_judges_what_the_slm_alone_would_have_drawn() -> None:
    draws = run_virtual(Run().go(fuser(0.0), Sampling(max_tokens=8), answering(CLOUD)))
    text, fed, seen = b"", EDGE.tokenize(PROMPT), []
    for draw in draws:
        own = int(np.argmax(EDGE.log_probs(fed)))
        known = {d: p for d, p, _ in candidates(CLOUD, text)}
        assert draw.cloud_log_prob is not None
        if PIECES[own] in known:
            seen.append(draw.cloud_log_prob)
            assert draw.cloud_log_prob == pytest.approx(known[PIECES[own]], abs=0.02)
        else:
            assert draw.cloud_log_prob < min(known.values()) + 0.02
        fed, text = [*fed, draw.id], text + draw.data
    assert seen
    alone = run_virtual(Run().go(fuser(1.0), Sampling(max_tokens=8), None))
    assert {d.cloud_log_prob for d in alone} == {None}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", range(9))
def test_b40_b41_b43_a_cloud_gone_at_any_token_leaves_no_repeat_and_no_gap(
    k: int, temperature: float
) -> None:
    asked: list[bytes] = []

    async def advise(text: bytes) -> Advice:
        asked.append(text)
        if len(asked) > k:
            raise CloudFailed("the connection was reset")
        return advice_of(CLOUD, text)

    sampling = Sampling(max_tokens=12, temperature=temperature, seed=4)
    draws = run_virtual(Run().go(fuser(0.3), sampling, advise))
    wanted, origins, _ = oracle(0.3, sampling, lambda i: CLOUD if i < k else None)
    assert ids(draws) == wanted and [d.origin for d in draws] == origins
    assert len(asked) == min(k + 3, len(wanted) + 1, 12)


def test_failures_count_only_in_a_row() -> None:
    asked = 0

    async def advise(text: bytes) -> Advice:
        nonlocal asked
        asked += 1
        if asked % 3:
            raise CloudFailed("busy")
        return advice_of(CLOUD, text)

    sampling = Sampling(max_tokens=12, temperature=1.0, seed=2)
    draws = run_virtual(Run().go(fuser(), sampling, advise))
    assert asked == len(draws) == 12


@pytest.mark.parametrize("first_budget_ms", [500.0, 100.0])
def test_a_black_hole_costs_one_first_budget_and_nothing_after(first_budget_ms: float) -> None:
    asked: list[bytes] = []

    async def advise(text: bytes) -> Advice:
        asked.append(text)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    run = Run()
    sampling = Sampling(max_tokens=6, temperature=1.0, seed=2)
    fuse = fuser(first_budget_ms=first_budget_ms)
    draws = run_virtual(run.go(fuse, sampling, advise))
    first_s = STEP_S + first_budget_ms / 1000
    assert run.times_s == pytest.approx([first_s + i * STEP_S for i in range(6)])
    assert asked == [b""] and {d.origin for d in draws} == {"edge"}
    assert ids(draws) == oracle(0.5, sampling, lambda i: None)[0]


def test_a_late_answer_is_dropped_and_later_tokens_are_fused_again() -> None:
    """Third question takes 75 ms: its token waits 50 ms past the SLM, one more goes out alone."""
    run = Run()
    sampling = Sampling(max_tokens=9, temperature=1.0, seed=9)
    delay = answering(CLOUD, lambda n: 0.0755 if n == 3 else 0.005)
    draws = run_virtual(run.go(fuser(), sampling, delay))
    edge_only = {2, 3}
    wanted, origins, _ = oracle(0.5, sampling, lambda i: None if i in edge_only else CLOUD)
    assert ids(draws) == wanted and [d.origin for d in draws] == origins
    waits = [round(b - a, 4) for a, b in zip([0.0, *run.times_s], run.times_s, strict=False)]
    assert waits == [0.01, 0.01, 0.06, 0.01, 0.0105, *[0.01] * 4]


def test_the_cloud_thinks_while_the_slm_does_and_is_waited_for_at_most_the_budget() -> None:
    for delay_s, wait_s, origins in [
        (0.008, 0.010, {"fused", "cloud"}),
        (0.030, 0.030, {"fused", "cloud"}),
    ]:
        run = Run()
        sampling = Sampling(max_tokens=5, temperature=1.0, seed=3)
        draws = run_virtual(run.go(fuser(), sampling, answering(CLOUD, lambda n, d=delay_s: d)))
        assert run.times_s == pytest.approx([wait_s * (i + 1) for i in range(5)])
        assert {d.origin for d in draws} <= origins


def test_advice_for_another_place_is_ignored_and_none_is_no_failure() -> None:
    async def shifted(text: bytes) -> Advice:
        return Advice(offset_bytes=len(text) + 1, candidates=advice_of(CLOUD, text).candidates)

    async def nothing(text: bytes) -> None:
        return None

    sampling = Sampling(max_tokens=8)
    for advise in (shifted, nothing):
        draws = run_virtual(Run().go(fuser(0.0), sampling, advise))
        assert ids(draws) == oracle(0.5, sampling, lambda i: None)[0]
        assert {d.origin for d in draws} == {"edge"}


def test_no_step_after_the_last_token() -> None:
    run = Run()
    draws = run_virtual(run.go(fuser(), Sampling(max_tokens=1, temperature=1.0, seed=1), None))
    assert len(draws) == 1 and run.steps == 0
    ended = ScriptedEngine(answers={"snow": "It is cold."})
    run = Run()
    sampling = Sampling(max_tokens=40)
    draws = run_virtual(run.go(fuser(0.1), sampling, answering(ended)))
    assert b"".join(d.data for d in draws) == b"It is cold."
    assert run.steps == len(draws)


def test_a_closed_stream_stops_the_question_and_the_step() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        steps: list[asyncio.Future] = []

        async def advise(text: bytes) -> Advice:
            if not text:
                return advice_of(CLOUD, text)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError("nobody sets the event")

        def step(token: int) -> asyncio.Future:
            steps.append(asyncio.get_running_loop().create_future())
            return steps[-1]

        first = asyncio.get_running_loop().create_future()
        first.set_result(EDGE.log_probs([1]))
        request = Request(id="r", prompt=PROMPT, sampling=Sampling(temperature=1.0, seed=1))
        draws = fuser()(request, first, Drafting(step=step, rollback=nothing), in_blocks(advise))
        await anext(draws)
        assert steps == []  # nothing is decoded before it is wanted
        waiting = asyncio.ensure_future(anext(draws))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert steps[0].cancelled() and cancelled.is_set()
        await draws.aclose()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_the_engines_error_ends_the_stream_and_the_question() -> None:
    async def main() -> None:
        async def advise(text: bytes) -> Advice:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets the event")

        first = asyncio.get_running_loop().create_future()
        first.set_exception(FloeError("the engine failed"))
        request = Request(id="r", prompt=PROMPT)
        with pytest.raises(FloeError, match="the engine failed"):
            drafting = Drafting(step=lambda t: first, rollback=nothing)
            await anext(fuser()(request, first, drafting, in_blocks(advise)))
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_a_bug_in_a_client_is_not_taken_for_a_lost_cloud() -> None:
    async def advise(text: bytes) -> Advice:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_virtual(Run().go(fuser(), Sampling(), advise))


def test_a52_top_tokens_are_finite_and_come_from_the_mix() -> None:
    sampling = Sampling(max_tokens=5, temperature=1.0, seed=5)
    draws = run_virtual(Run().go(fuser(0.0), sampling, answering(CLOUD), top=200))
    for draw in draws:
        assert 0 < len(draw.top) <= 200 and math.isfinite(draw.log_prob)
        values = [t.log_prob for t in draw.top]
        assert all(map(math.isfinite, values)) and values == sorted(values, reverse=True)
        assert {t.id: t.log_prob for t in draw.top}.get(draw.id, draw.log_prob) == draw.log_prob
