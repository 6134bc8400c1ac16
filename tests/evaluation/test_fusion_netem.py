"""The emulated network: delays in virtual time, seeded, and a black hole."""

from __future__ import annotations

import asyncio
import random

import pytest

from floe.core.advice import Advice, Question
from floe.evaluation.netem import Network, through
from floe.testing.virtual_time import run_virtual


async def answered(_question: Question) -> tuple[Advice, ...]:
    await asyncio.sleep(0.03)
    return (Advice(offset_bytes=0, candidates=()),)


async def waits_s(network: Network, n: int, *, seed: int = 0) -> list[float]:
    loop, advise, out = asyncio.get_running_loop(), through(answered, network, seed=seed), []
    for _ in range(n):
        began_s = loop.time()
        await advise(Question(answer=b""))
        out.append(loop.time() - began_s)
    return out


def test_a_round_trip_and_the_clouds_own_work_add_up() -> None:
    assert run_virtual(waits_s(Network(rtt_ms=80), 3)) == pytest.approx([0.11] * 3)


def test_jitter_stays_within_its_bound_and_comes_again_with_the_seed() -> None:
    network = Network(rtt_ms=20, jitter_ms=40)
    first, again = (run_virtual(waits_s(network, 50, seed=3)) for _ in range(2))
    assert first == again != run_virtual(waits_s(network, 50, seed=4))
    assert 0.05 <= min(first) < 0.06 and 0.08 < max(first) <= 0.09


def test_loss_costs_a_retransmission_and_stalls_their_time() -> None:
    rng = random.Random(1)
    lost = [Network(rtt_ms=10, loss=0.25).delay_ms(rng) for _ in range(2000)]
    assert set(lost) == {10.0, 210.0}
    assert lost.count(210.0) / 2000 == pytest.approx(0.25, abs=0.03)
    stalled = [Network(stalls=0.1, stall_ms=2000).delay_ms(rng) for _ in range(2000)]
    assert stalled.count(2000.0) / 2000 == pytest.approx(0.1, abs=0.02)


def test_a_dead_network_never_answers_and_can_be_left() -> None:
    async def main() -> bool:
        task = asyncio.ensure_future(through(answered, Network(dead=True))(Question(answer=b"")))
        await asyncio.wait({task}, timeout=3600)
        is_waiting = not task.done()
        task.cancel()
        await asyncio.wait({task})
        return is_waiting

    assert run_virtual(main())
