"""The parts of `floe bench fusion` on pairs of scripted engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from xml.etree import ElementTree

import pytest

from floe.core.advice import Question
from floe.core.request import Request
from floe.core.token import Draw
from floe.evaluation import fusion_parts
from floe.evaluation.fusion_bench import FIELDS
from floe.evaluation.fusion_cloud import CloudRecord, HeldLoop, Traffic, replayed
from floe.evaluation.fusion_page import Lines
from floe.evaluation.fusion_quality import quality_figures
from floe.evaluation.fusion_runs import Pair, Streamed, asked, stream
from floe.evaluation.fusion_takeovers import ENDS, ending, takeovers
from floe.evaluation.netem import Network
from floe.evaluation.report import PAGES
from floe.fusion.align import Alignment
from floe.fusion.generate import Fuser
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.testing.scripted_engine import ScriptedEngine

T = TypeVar("T")
EDGE, CLOUD, TWIN = ScriptedEngine(seed=1), ScriptedEngine(seed=2), ScriptedEngine(seed=1)
ALIGNMENT = Alignment(
    token_bytes=[EDGE.token_bytes(i) for i in range(EDGE.info.n_vocab)], eos_ids=EDGE.info.eos_ids
)
REQUEST = asked("Tell me about snow", max_tokens=12, temperature=0.0, seed=3)


def pair() -> Pair:
    return Pair(
        edge=EDGE,
        cloud=CLOUD,
        encode=lambda r: EDGE.tokenize(" ".join(m.content for m in r.messages)),
        encode_cloud=lambda r: CLOUD.tokenize(r.topic()),
        alignment=ALIGNMENT,
    )


def fast(budget_ms: float = 60_000.0) -> SpeculativeFuser:
    return SpeculativeFuser(
        weight=0.5,
        limits=Limits(budget_ms=budget_ms, first_budget_ms=budget_ms),
        alignment=ALIGNMENT,
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
    )


def by_token() -> Fuser:
    return Fuser(
        weight=0.5,
        budget_ms=60_000.0,
        first_budget_ms=60_000.0,
        alignment=ALIGNMENT,
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
    )


def held(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return fusion_parts.in_held_time(main)


def test_held_time_stands_still() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HeldLoop)
        began_s, wall_s = loop.time(), time.monotonic()
        with loop.held():
            while time.monotonic() - wall_s < 0.02:
                pass
        return (time.monotonic() - wall_s) - (loop.time() - began_s)

    assert held(main) >= 0.0199


def record(*, exact: bool = False, top_k: int = 64) -> CloudRecord:
    return CloudRecord(engine=CLOUD, prompt=CLOUD.tokenize("ab"), top_k=top_k, exact=exact)


@pytest.mark.parametrize("exact", [False, True])
def test_a_replayed_place_says_what_the_engine_says(exact: bool) -> None:
    cloud = record(exact=exact, top_k=5)
    ids = CLOUD.tokenize("the cat")
    ends = [len(b"".join(CLOUD.token_bytes(i) for i in ids[: n + 1])) for n in range(len(ids))]
    question = Question(answer=b"", draft=b"the cat", ends=tuple(ends))
    found = cloud.advice(question)
    assert [a.offset_bytes for a in found] == [0, *ends]
    for n, advice in enumerate(found):
        log_p = CLOUD.log_probs([*CLOUD.tokenize("ab"), *ids[:n]])
        best = sorted(log_p, reverse=True)[: len(advice.candidates)]
        assert [c.log_prob for c in advice.candidates] == pytest.approx(best)
    assert (cloud.questions, cloud.misses) == (1, 1)
    assert cloud.advice(question) == found
    assert (cloud.questions, cloud.misses) == (2, 1)


def test_live_and_replayed_say_the_same() -> None:
    cloud, question = record(), Question(answer=b"th", draft=b"e cat")

    async def main() -> Any:
        return await cloud.live()(question)

    assert held(main) == cloud.advice(question)


def test_a_stream_has_its_times_and_the_traffic_its_bytes() -> None:
    async def main() -> tuple[Streamed, Traffic]:
        both, traffic = pair(), Traffic()
        advise = replayed(both.record(REQUEST), compute_ms=1.0)
        counted = traffic.counted(advise, REQUEST, top_k=64)
        return await stream(both, fast(), REQUEST, counted), traffic

    found, traffic = held(main)
    assert list(found.times_s) == sorted(found.times_s)
    assert all(r <= t for r, t in zip(found.ready_s, found.times_s, strict=True))
    assert traffic.questions > 0
    assert traffic.up_bytes > 40 * traffic.questions and traffic.down_bytes > traffic.questions


def streamed(times_s: tuple[float, ...], ready_s: tuple[float, ...]) -> Streamed:
    draw = Draw(id=1, data=b"a", log_prob=0.0, origin="edge")
    return Streamed(draws=(draw,) * len(times_s), times_s=times_s, ready_s=ready_s, steps=0)


def test_late_is_past_the_budget_and_a_step_from_when_the_slm_had_it() -> None:
    found = streamed((0.0, 0.30, 0.64, 1.0), (0.0, 0.05, 0.35, 0.9))
    # waits of 0.25 (ready later), 0.29 (ready later) and 0.1
    assert found.late(0.25, 0.02) == 1
    assert found.late(0.25, 0.05) == 0
    assert found.late(0.05, 0.02) == 3


def test_a_tally_pools_tokens_and_seconds() -> None:
    tally, traffic = fusion_parts.Tally(), Traffic()
    tally.add(streamed((1.0, 2.0, 3.0), (1.0,) * 3), traffic)
    tally.add(streamed((1.0, 1.5), (1.0,) * 2), traffic)
    assert tally.tokens_s == pytest.approx(3 / 2.5)
    assert (tally.tokens, tally.streams, tally.asked_tokens) == (5, 2, 0)


def test_every_side_is_timed_over_every_request() -> None:
    sides = [("by_token", by_token(), True), ("exact", fast(), True), ("slm", fast(), False)]
    both = pair()
    found = held(
        lambda: fusion_parts.tally(both, sides, [REQUEST], Network(rtt_ms=2), shared=False)
    )
    assert found["slm"].questions == 0 and found["slm"].asked_tokens == 0
    assert found["by_token"].asked_tokens > 0
    assert found["exact"].tokens == found["by_token"].tokens


def test_speculative_streams_are_exact_and_the_distance_is_a_distance() -> None:
    request: Request = asked("Tell me about snow", max_tokens=6, temperature=1.0, seed=1)
    found = held(
        lambda: fusion_parts.exactness(
            pair(), TWIN, fast(), by_token(), request, seeds=list(range(12))
        )
    )
    assert found["coupled"] == 0.0
    assert 0.0 <= found["independent"] <= 1.0
    assert fusion_parts.distance("aab", "aab") == 0.0
    assert fusion_parts.distance("aa", "bb") == 1.0
    assert fusion_parts.distance("aabb", "aaab") == pytest.approx(0.25)


def test_a_stream_goes_on_from_every_end_at_every_token() -> None:
    found = held(lambda: takeovers(pair(), fast(20.0), REQUEST, positions=4))
    assert (found.tried, found.continued) == (4 * len(ENDS), 4 * len(ENDS))


def test_a_repeat_would_be_seen() -> None:
    """A fuse that says a token twice is not taken for one that goes on."""

    async def twice(request: Any, first: Any, drafting: Any, advise: Any) -> Any:
        async for draw in fast(20.0)(request, first, drafting, advise):
            yield draw
            yield draw

    found = held(lambda: takeovers(pair(), twice, REQUEST, positions=2))
    assert found.continued == 0


def test_ends_are_an_error_silence_and_places_that_were_not_asked() -> None:
    async def main() -> None:
        base = replayed(record(), compute_ms=0.0)
        question = Question(answer=b"ab")
        odd = await ending(base, "garbage", lambda: True)(question)
        assert all(a.offset_bytes > 2 for a in odd)
        with pytest.raises(Exception, match="the benchmark has cut the connection"):
            await ending(base, "cut", lambda: True)(question)
        silent = asyncio.ensure_future(ending(base, "stall", lambda: True)(question))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not silent.done()
        silent.cancel()
        await asyncio.wait({silent})
        assert await ending(base, "cut", lambda: False)(question) == await base(question)

    held(main)


def test_lines_leave_out_what_was_not_measured() -> None:
    lines = Lines(
        title="a < b",
        unit="x",
        x_unit="ms",
        series=(("one", ((0.0, "p"), ("at", "q"), (2.0, "r"))),),
    )
    text = lines.svg({"p": 1.0, "at": 1.0, "q": 2.0, "r": None})
    root = ElementTree.fromstring(f"<div>{text}</div>")
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 2
    assert "not measured" in lines.svg({})


def test_without_learned_weights_there_are_no_figures_of_quality() -> None:
    assert quality_figures(None, cloud_share=0.5) == {}


def test_every_goal_is_a_field_that_is_null_until_measured() -> None:
    assert {goal.field for goal in PAGES["fusion"].goals} <= set(FIELDS)
    assert all(field in FIELDS for field in ("bytes_per_token_up", "bytes_per_token_down"))
