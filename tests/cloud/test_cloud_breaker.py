"""The circuit breaker, retries and hedged connections, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime, timedelta

import httpcore
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.cloud.breaker import Breaker, BreakerRules
from floe.cloud.client import record_nothing
from floe.cloud.hedge import HedgedBackend, HedgedTransport
from floe.cloud.logits import LogitCloud
from floe.cloud.retry import Retry, Trouble, hold_s_of
from floe.core.advice import Question
from floe.core.errors import CloudFailed
from floe.testing.cloud_conformance import REQUEST, SECRET
from floe.testing.virtual_time import run_virtual

GOOD = {"version": 1, "model": "m", "tokenizer_digest": "d", "positions": []}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def breaker(clock: Clock, **rules: object) -> Breaker:
    return Breaker(clock=clock, rng=random.Random(3), rules=BreakerRules(**rules))  # type: ignore[arg-type]


def fail(one: Breaker, n: int = 1) -> None:
    for _ in range(n):
        one.enter().failed()


def test_it_opens_after_failures_in_a_row_and_a_success_starts_the_count_again() -> None:
    clock = Clock()
    one = breaker(clock, failures_in_a_row=3)
    fail(one, 2)
    one.enter().succeeded()
    fail(one, 2)
    assert one.state == "closed"
    fail(one)
    assert one.state == "open"
    with pytest.raises(CloudFailed, match="it failed too often and is left alone for a while"):
        one.enter()


def test_it_opens_at_a_share_of_failures_in_a_full_window() -> None:
    one = breaker(Clock(), failures_in_a_row=99, window=10, failed_share=0.5)
    for i in range(9):
        leave = one.enter()
        leave.failed() if i % 2 else leave.succeeded()
    assert one.state == "closed"  # 4 of 9
    fail(one)
    assert one.state == "open"


def test_one_probe_at_a_time_and_the_cool_down_doubles() -> None:
    clock = Clock()
    one = breaker(clock, failures_in_a_row=1, cool_down_s=1.0, most_cool_down_s=4.0)
    fail(one)
    waits = []
    for _ in range(6):
        began_s = clock.now_s
        while True:
            try:
                probe = one.enter()
                break
            except CloudFailed:
                clock.now_s += 0.01
        waits.append(clock.now_s - began_s)
        with pytest.raises(CloudFailed, match="left alone"):
            one.enter()
        probe.failed()
        assert one.state == "open"
    for wait_s, longest_s in zip(waits, (1, 2, 4, 4, 4, 4), strict=True):
        assert longest_s / 2 <= wait_s <= longest_s + 0.011
    clock.now_s += 4
    one.enter().succeeded()
    assert one.state == "closed"
    fail(one)
    clock.now_s += 1.01  # the cool-down is short again
    one.enter()


def test_a_probe_that_nobody_waits_for_leaves_the_next_question_to_probe() -> None:
    clock = Clock()
    one = breaker(clock, failures_in_a_row=1)
    fail(one)
    clock.now_s += 2
    one.enter().released()
    assert one.state == "open"
    one.enter().succeeded()
    assert one.state == "closed"


def test_a_probe_whose_answer_has_begun_lets_others_in_and_a_later_cut_is_one_failure() -> None:
    clock = Clock()
    one = breaker(clock, failures_in_a_row=2)
    fail(one, 2)
    clock.now_s += 2
    probe = one.enter()
    probe.began()
    assert one.state == "closed"
    probe.failed()
    assert one.state == "closed"
    fail(one)
    assert one.state == "open"


def test_outcomes_that_come_after_the_opening_change_nothing() -> None:
    one = breaker(Clock(), failures_in_a_row=1)
    late, later = one.enter(), one.enter()
    fail(one)
    late.succeeded()
    later.failed()
    assert one.state == "open"


def test_a_locked_breaker_stays_locked() -> None:
    clock = Clock()
    one = breaker(clock)
    leave = one.enter()
    assert one.lock() and not one.lock()
    leave.succeeded()
    clock.now_s += 1e6
    assert one.state == "locked"
    with pytest.raises(CloudFailed, match="refuses the key: set FLOE_CLOUD_KEY and restart"):
        one.enter()


@given(st.lists(st.sampled_from(["ok", "fail", "drop", "begin", "wait"]), max_size=200))
@settings(deadline=None)
def test_it_always_lets_somebody_in_again(events: list[str]) -> None:
    """Whatever happened, after the longest cool-down a question may be asked."""
    clock = Clock()
    one = breaker(clock, failures_in_a_row=2, window=4, most_cool_down_s=30.0)
    for event in events:
        if event == "wait":
            clock.now_s += 0.4
            continue
        try:
            leave = one.enter()
        except CloudFailed:
            continue
        if event == "begin":
            leave.began()
        {"ok": leave.succeeded, "fail": leave.failed}.get(event, leave.released)()
    clock.now_s += 30.0
    one.enter()


# --- retries


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, 0), ("3", 3), ("0.5", 0.5), ("-4", 0), ("soon", 0), ("nan", 0), ("inf", 0)],
)
def test_seconds_to_hold(value: str | None, seconds: float) -> None:
    assert hold_s_of(value, datetime.now(UTC)) == seconds


def test_a_date_to_hold_until_and_the_most_that_is_honoured() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert hold_s_of("Thu, 01 Jan 2026 12:00:07 GMT", now) == 7
    assert hold_s_of("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0
    assert hold_s_of("86400", now) == timedelta(minutes=5).total_seconds()


@given(n=st.integers(0, 9), seed=st.integers(0, 999), hold_s=st.sampled_from([0.0, 2.0]))
def test_full_jitter(n: int, seed: int, hold_s: float) -> None:
    trouble = Trouble("no", is_passing=True, hold_s=hold_s)
    delay_ms = Retry().delay_ms(n, trouble, random.Random(seed))
    assert hold_s * 1000 <= delay_ms <= hold_s * 1000 + min(400, 25 * 2**n)


class Server:
    """Answers with each outcome in turn, then well; remembers when it was asked."""

    def __init__(self, *outcomes: httpx.Response | Exception | float) -> None:
        self.outcomes, self.times_s = list(outcomes), []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.times_s.append(asyncio.get_running_loop().time())
        self.n_bytes = len(request.content)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, float):
            await asyncio.sleep(outcome)
            outcome = None
        return outcome or httpx.Response(200, json=GOOD)

    def cloud(self, **options: object) -> LogitCloud:
        return LogitCloud(
            url="https://cloud.example",
            on_send=record_nothing,
            client=httpx.AsyncClient(transport=httpx.MockTransport(self)),
            rng=random.Random(1),
            **options,  # type: ignore[arg-type]
        )


async def ask(cloud: LogitCloud, answer: bytes = b"x") -> None:
    async with cloud.open(REQUEST) as advise:
        await advise(Question(answer=answer))


def busy(after: str | None = None, status: int = 429) -> httpx.Response:
    return httpx.Response(status, headers={"retry-after": after} if after else {})


@pytest.mark.parametrize(
    "outcome",
    [busy(), busy(status=503), httpx.Response(500), httpx.ReadError("x"), httpx.ConnectError("x")],
)
def test_a_passing_trouble_is_tried_again_within_the_budget(outcome: object) -> None:
    async def main() -> None:
        server = Server(outcome, outcome)  # type: ignore[arg-type]
        cloud = server.cloud()
        await ask(cloud)
        counted = cloud.counters()
        assert (counted.asked, counted.answered, counted.failed, counted.retried) == (1, 1, 0, 2)
        assert server.times_s[-1] <= 0.025 + 0.050 and len(set(server.times_s)) == 3

    run_virtual(main())


def test_no_try_begins_after_the_budget() -> None:
    async def main() -> None:
        for budget_ms, tries in [(0.0, 1), (3.0, 1), (1000.0, 3)]:
            server = Server(*[busy() for _ in range(5)])
            cloud = server.cloud(budget_ms=budget_ms)
            with pytest.raises(CloudFailed, match="status 429; it is asked too often"):
                await ask(cloud)
            assert len(server.times_s) == tries
            assert server.times_s[-1] * 1000 <= budget_ms

    run_virtual(main())


@pytest.mark.parametrize(
    "outcome", [httpx.Response(404), httpx.ReadTimeout("x"), httpx.Response(400)]
)
def test_what_will_not_pass_is_not_tried_again(outcome: object) -> None:
    async def main() -> None:
        server = Server(outcome)  # type: ignore[arg-type]
        with pytest.raises(CloudFailed):
            await ask(server.cloud())
        assert len(server.times_s) == 1

    run_virtual(main())


def test_retry_after_is_honoured_by_the_question_and_by_all_others() -> None:
    async def main() -> None:
        server = Server(busy("2"))
        cloud = server.cloud(first_budget_ms=4_000)
        first = asyncio.ensure_future(ask(cloud, b""))
        await asyncio.sleep(1)
        with pytest.raises(CloudFailed, match="left alone for a while"):
            await ask(cloud)
        await first
        assert server.times_s[0] == 0 and 2.0 <= server.times_s[1] <= 2.025
        assert cloud.counters().breaker == "closed" and cloud.counters().turned_away == 1

    run_virtual(main())


def test_retry_after_longer_than_the_budget_fails_at_once() -> None:
    async def main() -> None:
        server = Server(busy("2", status=503))
        cloud = server.cloud()
        with pytest.raises(CloudFailed, match="status 503"):
            await ask(cloud)
        assert asyncio.get_running_loop().time() == 0
        await asyncio.sleep(2.001)
        await ask(cloud)

    run_virtual(main())


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_all_asking_with_one_log_line(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Server(httpx.Response(status, text=SECRET))
        cloud = server.cloud()
        with pytest.raises(CloudFailed, match=f"status {status}; check FLOE_CLOUD_KEY"):
            await ask(cloud)
        for _ in range(3):
            with pytest.raises(CloudFailed, match="set FLOE_CLOUD_KEY and restart"):
                await ask(cloud)
            await asyncio.sleep(100)
        assert len(server.times_s) == 1 and cloud.counters().breaker == "locked"

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == (
        f"the cloud at cloud.example refuses the key (status {status}): it is not asked again "
        "until restart; set FLOE_CLOUD_KEY"
    )


def test_a_dead_cloud_is_left_alone_and_found_again() -> None:
    async def main() -> None:
        server = Server(*[httpx.ConnectError("x")] * 9)
        cloud = server.cloud(budget_ms=0)
        failed = 0
        while server.outcomes or cloud.counters().breaker != "closed":
            try:
                await ask(cloud)
            except CloudFailed as error:
                assert "no answer from the cloud at cloud.example" in error.message
                failed += 1
            await asyncio.sleep(0.1)
        assert failed > 9 == len(server.times_s) - 1
        assert cloud.counters().turned_away == failed - 9
        assert cloud.counters().loss_share > 0.9

    run_virtual(main())


def test_garbage_counts_as_failure() -> None:
    async def main() -> None:
        server = Server(*[httpx.Response(200, text=f"<html>{SECRET}") for _ in range(5)])
        cloud = server.cloud()
        for _ in range(5):
            with pytest.raises(CloudFailed, match="malformed: the body is not valid JSON"):
                await ask(cloud)
        assert cloud.counters().breaker == "open" and len(server.times_s) == 5

    run_virtual(main())


def test_silence_given_up_after_its_budget_counts_and_a_quick_cancel_does_not() -> None:
    async def main() -> None:
        server = Server(*[1000.0] * 30)
        cloud = server.cloud()
        for wait_s, state in [(0.1, "closed"), (0.3, "open")]:
            for _ in range(5):
                question = asyncio.ensure_future(ask(cloud))
                await asyncio.sleep(wait_s)
                question.cancel()
                await asyncio.wait({question})
            assert cloud.counters().breaker == state
        assert cloud.counters().given_up == 10

    run_virtual(main())


class Dribble(httpx.AsyncByteStream):
    """A byte a second, for ever."""

    async def __aiter__(self):
        while True:
            await asyncio.sleep(1)
            yield b" "


def test_a_slow_loris_is_cut_off() -> None:
    async def main() -> None:
        server = Server(httpx.Response(200, stream=Dribble()))
        cloud = server.cloud()
        with pytest.raises(CloudFailed, match="not whole after 30 s"):
            await ask(cloud)
        assert asyncio.get_running_loop().time() == 30
        assert cloud.counters().bytes_down == 29

    run_virtual(main())


def test_counters_and_their_figures() -> None:
    async def main() -> None:
        server = Server(0.04, 0.08, httpx.Response(404), 0.02)
        cloud = server.cloud()
        for _ in range(2):
            await ask(cloud)
        with pytest.raises(CloudFailed):
            await ask(cloud)
        await ask(cloud)
        counted = cloud.counters()
        assert (counted.asked, counted.answered, counted.failed) == (4, 3, 1)
        assert counted.round_trip_p50_ms == pytest.approx(40)
        assert counted.round_trip_p95_ms == pytest.approx(80)
        assert counted.loss_share == 0.25 and counted.bytes_up == 4 * server.n_bytes
        assert counted.bytes_down == 3 * len(httpx.Response(200, json=GOOD).content)
        figures = counted.figures()
        assert figures["cloud_asked_total"] == 4 and figures["cloud_breaker_state"] == 0
        assert len(figures) == 15

    run_virtual(main())


# --- hedged connections


class Stream(httpcore.AsyncNetworkStream):
    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


class Network(httpcore.AsyncNetworkBackend):
    """Each attempt takes its time, then stands or fails."""

    def __init__(self, *attempts: tuple[float, bool]) -> None:
        self.attempts, self.streams, self.cancelled = list(attempts), [], 0

    async def connect_tcp(self, *args: object, **options: object) -> Stream:
        seconds, stands = self.attempts.pop(0)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if not stands:
            raise httpcore.ConnectError("refused")
        self.streams.append(Stream())
        return self.streams[-1]


@pytest.mark.parametrize(
    ("attempts", "seconds", "hedged", "cancelled"),
    [
        ([(0.05, True)], 0.05, 0, 0),
        ([(9.0, True), (0.02, True)], 0.12, 1, 1),
        ([(0.15, True), (9.0, True)], 0.15, 1, 1),
        ([(0.2, False), (0.3, True)], 0.4, 1, 0),
        ([(0.3, True), (0.05, False)], 0.3, 1, 0),
    ],
)
def test_the_faster_connection_is_used(
    attempts: list, seconds: float, hedged: int, cancelled: int
) -> None:
    async def main() -> None:
        network = Network(*attempts)
        backend = HedgedBackend(network, after_s=0.1)
        stream = await backend.connect_tcp("cloud.example", 443)
        assert asyncio.get_running_loop().time() == pytest.approx(seconds)
        assert (backend.hedged, network.cancelled) == (hedged, cancelled)
        assert stream is network.streams[0] and not stream.closed
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_two_connections_at_one_moment_leave_none_open() -> None:
    async def main() -> None:
        network = Network((0.2, True), (0.1, True))
        used = await HedgedBackend(network, after_s=0.1).connect_tcp("cloud.example", 443)
        assert [s.closed for s in network.streams if s is not used] in ([], [True])
        assert not used.closed

    run_virtual(main())


@pytest.mark.parametrize("attempts", [[(0.05, False)], [(0.2, False), (0.3, False)]])
def test_no_connection_is_the_networks_own_error(attempts: list) -> None:
    async def main() -> None:
        with pytest.raises(httpcore.ConnectError, match="refused"):
            await HedgedBackend(Network(*attempts), after_s=0.1).connect_tcp("cloud.example", 443)

    run_virtual(main())


def test_a_cancelled_connect_cancels_both() -> None:
    async def main() -> None:
        network = Network((9.0, True), (9.0, True))
        connect = HedgedBackend(network, after_s=0.1).connect_tcp("cloud.example", 443)
        task = asyncio.ensure_future(connect)
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait({task})
        assert network.cancelled == 2 and len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_httpx_connects_through_it() -> None:
    """The one private name of httpx that is used still is what connects."""

    async def main() -> None:
        backend = HedgedBackend(Network((9.0, True), (0.05, False), (9.0, True)), after_s=0.1)
        async with httpx.AsyncClient(transport=HedgedTransport(backend)) as client:
            task = asyncio.ensure_future(client.get("http://cloud.example"))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.wait({task})
        assert backend.hedged == 1

    run_virtual(main())
