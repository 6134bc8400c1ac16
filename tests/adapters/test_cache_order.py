"""Who waits for whom: one load for all, fair turns, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cache_toys import FileStore, Handle, Memory, Slow, cache, route, slow_cache

from floe.adapters.cache import AdapterCache
from floe.core.errors import BadAdapter, Busy
from floe.core.sections import TenantConfig
from floe.testing.virtual_time import run_virtual

SIZES = dict.fromkeys("abcdefgh", 100)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", SIZES)


async def hold(
    kept: AdapterCache[Handle], *names: str, s: float = 0.0, tenant: str = "default"
) -> float:
    """Lease for `s` seconds; when the lease began."""
    async with kept.lease(route(*names), tenant=tenant) as leased:
        assert all(h.is_loaded for h, _ in leased)
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(s)
    return began_s


async def later(s: float, what: Callable[[], Awaitable[Any]]) -> Any:
    await asyncio.sleep(s)
    return await what()


def test_f10_a_thousand_requests_for_a_cold_adapter_are_one_load(store: FileStore) -> None:
    memory, slow = Memory(), Slow(500)
    kept = slow_cache(store, memory, 200, slow)

    async def main() -> None:
        began = await asyncio.gather(*(hold(kept, "a") for _ in range(1000)))
        assert set(began) == {0.5}

    run_virtual(main())
    assert memory.loads == ["d-a"] and slow.order == ["a"]
    counters = kept.counters()
    assert (counters.misses, counters.coalesced, counters.loads) == (1, 999, 1)


def test_f10_a_failure_is_shared_and_the_next_request_tries_again(store: FileStore) -> None:
    memory, slow = Memory(fail={"d-a"}), Slow(500)
    kept = slow_cache(store, memory, 200, slow)

    async def main() -> None:
        failed = await asyncio.gather(*(hold(kept, "a") for _ in range(50)), return_exceptions=True)
        assert {str(e) for e in failed} == {"the engine refused d-a"}
        assert kept.counters().failures == 1 and len(memory.loads) == 1
        manifest = store.stored["a"].manifest
        assert kept.fault(manifest) == "the engine refused d-a"
        await asyncio.sleep(31)
        assert kept.fault(manifest) == ""  # not for long
        memory.fail.clear()
        await hold(kept, "a")

    run_virtual(main())


def test_a_wait_for_room_ends_when_room_comes_or_with_a_reason(store: FileStore) -> None:
    kept = slow_cache(store, Memory(), 200, Slow(10), wait_ms=1_000)

    async def main() -> None:
        first = asyncio.create_task(hold(kept, "a", "b", s=0.5))
        second = asyncio.create_task(later(0.1, lambda: hold(kept, "c", s=5)))
        third = asyncio.create_task(later(0.7, lambda: hold(kept, "d", "e")))
        await asyncio.sleep(0.2)
        assert kept.counters().waiting == 1
        await first
        with pytest.raises(Busy, match="no room for 200 bytes of adapters: 100 of 200 bytes are"):
            await third
        assert asyncio.get_running_loop().time() == pytest.approx(1.7)
        assert await second == pytest.approx(0.53)
        assert kept.counters().refusals == kept.by_tenant()["default"].refusals == 1

    run_virtual(main())


def test_a_cancelled_wait_makes_way_and_starts_no_load(store: FileStore) -> None:
    memory, slow = Memory(), Slow(100)
    kept = slow_cache(store, memory, 200, slow, wait_ms=10_000)

    async def main() -> None:
        running = asyncio.create_task(hold(kept, "a"))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(hold(kept, name)) for name in "bc"]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        await asyncio.gather(running, waiting[1])
        assert slow.order == ["a", "c"]

    run_virtual(main())


def test_a_load_that_nobody_waits_for_is_dropped_before_it_begins(store: FileStore) -> None:
    memory, slow = Memory(), Slow(100)
    kept = slow_cache(store, memory, 400, slow)

    async def main() -> None:
        both = asyncio.create_task(hold(kept, "a", "b"))
        await asyncio.sleep(0.05)
        both.cancel()
        await asyncio.wait([both])
        await hold(kept, "c")
        assert slow.order == ["a", "c"]  # a was under way, b was not
        assert kept.counters().dropped == 1 and kept.counters().failures == 0

    run_virtual(main())


@pytest.mark.parametrize("bound", [0, 3])
def test_a67_a_blocked_request_is_overtaken_only_so_often(store: FileStore, bound: int) -> None:
    """One slot: A runs, B waits, and then A after A, each overlapping the one before."""
    kept = slow_cache(store, Memory(), 100, Slow(10), wait_ms=60_000, max_overtaken=bound)
    began: list[tuple[float, str]] = []

    async def one(name: str) -> None:
        began.append((await hold(kept, name, s=1.0), name))

    async def main() -> None:
        tasks = [asyncio.create_task(one("a"))]
        await asyncio.sleep(0.1)
        tasks.append(asyncio.create_task(one("b")))
        for _ in range(20):
            await asyncio.sleep(0.5)
            tasks.append(asyncio.create_task(one("a")))
        await asyncio.gather(*tasks)

    run_virtual(main())
    order = [name for _, name in sorted(began)]
    assert order.index("b") == 1 + bound
    assert order.count("a") == 21


def test_a67_loads_go_in_turn_by_share_and_priority(store: FileStore) -> None:
    tenants = {"big": TenantConfig(share=2.0), "vip": TenantConfig(priority=1)}
    slow = Slow(100)
    kept = slow_cache(store, Memory(), 10_000, slow, tenants=tenants)

    async def main() -> None:
        wanted = [("small", "a"), ("small", "b"), ("small", "c"), ("big", "d"), ("big", "e"),
                  ("big", "f"), ("big", "g"), ("vip", "h")]  # fmt: skip
        await asyncio.gather(*(hold(kept, name, tenant=t) for t, name in wanted))

    run_virtual(main())
    assert slow.order[0] == "a"  # nobody else was there yet
    assert slow.order[1] == "h"
    rest = slow.order[2:]
    assert [n for n in rest if n in "defg"] == list("defg")
    assert rest.index("c") >= 3  # two of big for one of small


def test_a67_a_tenant_of_low_priority_is_not_starved(store: FileStore) -> None:
    tenants = {"vip": TenantConfig(priority=9)}
    slow = Slow(100)
    kept = slow_cache(store, Memory(), 300, slow, tenants=tenants, max_overtaken=3)

    async def main() -> None:
        tasks = [asyncio.create_task(hold(kept, "a", tenant="vip"))]
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(hold(kept, "b", tenant="low")))
        for turn in range(12):
            await asyncio.sleep(0.05)
            tasks.append(asyncio.create_task(hold(kept, "cdefgh"[turn % 6], tenant="vip")))
        await asyncio.gather(*tasks)

    run_virtual(main())
    assert slow.order.index("b") <= 4


def test_a25_the_loop_is_free_while_a_slow_adapter_loads(store: FileStore) -> None:
    """A stream on the same loop: its longest gap stays within a tick while 20 loads run."""
    kept = slow_cache(store, Memory(), 200, Slow(700), wait_ms=60_000)

    async def main() -> None:
        loop, gaps = asyncio.get_running_loop(), []
        loads = asyncio.create_task(later(0, lambda: asyncio.gather(
            *(later(i / 10, lambda n=name: hold(kept, n)) for i, name in enumerate("abcdefgh"))
        )))  # fmt: skip
        last_s = loop.time()
        while not loads.done():
            await asyncio.sleep(0.02)
            gaps.append(loop.time() - last_s)
            last_s = loop.time()
        await loads
        assert len(gaps) > 200 and max(gaps) < 0.021

    run_virtual(main())


async def test_a26_the_base_goes_on_while_pins_fill_the_budget(store: FileStore) -> None:
    kept = cache(store, Memory(), 200, pinned=("a",))
    await kept.start()
    async with kept.lease(route("b")), kept.lease(route()) as base:
        assert list(base) == []
        async with kept.lease(route("a")):  # pinned: is there, needs no room
            pass
        with pytest.raises(
            Busy, match="100 of 200 bytes are in use by running requests, 100 are pinned or"
        ):
            await hold(kept, "c")
    await hold(kept, "c")
    await hold(kept, "d")
    assert kept.is_resident("d-a") and not kept.is_resident("d-c")
    rows = {row.name: row for row in kept.snapshot()}
    assert rows["a"].is_pinned and not rows["d"].is_pinned
    counters = kept.counters()
    assert (counters.pinned, counters.pinned_bytes, counters.resident) == (1, 100, 2)
    with pytest.raises(BadAdapter, match="need 200 bytes in memory, the budget is 200, 100 of it"):
        await hold(kept, "b", "c")


async def test_a_pinned_name_follows_its_content(store: FileStore, tmp_path: Path) -> None:
    kept = cache(store, Memory(), 200, pinned=("a", "zz"))
    async with kept.lease(route("b")):  # nobody called start: the first lease does
        assert kept.is_resident("d-a")
    [note] = kept.notes
    assert note == "adapters.pinned: 'zz' is not in memory: there is no adapter of that name"
    store.stored["a"] = store.stored["c"]  # the name means other content now
    await kept.forget("d-a")
    assert kept.is_resident("d-c") and not kept.is_resident("d-a")
    store.broken.add("a")
    await kept.start()
    assert "'a' is not in memory: a is gone" in kept.notes[0]


async def test_f07_a_fault_of_admission_is_seen_and_ends_no_later_request(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache(store, Memory(), 200)
    table = kept._table

    def broken(*_args: object, **_more: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "victims", broken)
        with pytest.raises(ZeroDivisionError):
            await hold(kept, "a")
        assert kept.counters().waiting == 0
    await hold(kept, "a")
    assert kept.failure == ""


def test_f07_a_waiting_request_hears_of_a_fault_and_health_is_red(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = slow_cache(store, Memory(), 100, Slow(10), wait_ms=60_000)

    async def main() -> None:
        first = asyncio.create_task(hold(kept, "a", s=1.0))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(hold(kept, "b"))
        await asyncio.sleep(0.1)
        with monkeypatch.context() as patch:
            patch.setattr(type(kept._table), "can_pin", lambda *_a, **_m: 1 / 0)
            await first
            with pytest.raises(Exception, match="the adapter cache failed; see the server's log"):
                await second
            assert kept.failure == "admission of adapters failed: ZeroDivisionError"
        await hold(kept, "b")
        assert kept.failure == ""

    run_virtual(main())


def test_f07_a_load_that_hangs_turns_health_red(store: FileStore) -> None:
    now = [0.0]
    kept = slow_cache(store, Memory(), 100, Slow(1_000))
    kept._admission.loader._clock_s = lambda: now[0]

    async def main() -> None:
        task = asyncio.create_task(hold(kept, "a"))
        await asyncio.sleep(0.5)
        assert kept.failure == ""
        now[0] = 61.0
        assert kept.failure == "the load of adapter 'a' has run for over 60 s"
        await task
        assert kept.failure == ""

    run_virtual(main())


def test_f13_thrash_is_a_rate(store: FileStore) -> None:
    """Two adapters in turn through one slot, then quiet: the rates rise and fall."""
    kept = slow_cache(store, Memory(), 100, Slow(10))

    async def main() -> None:
        for _ in range(10):
            await hold(kept, "a")
            await hold(kept, "b")
        counters = kept.counters()
        assert (counters.evictions, counters.reloads) == (19, 18)
        assert counters.evictions_per_min == pytest.approx(19 / 5)
        assert counters.reloads_per_min == pytest.approx(18 / 5)
        await asyncio.sleep(400)
        later = kept.counters()
        assert (later.evictions_per_min, later.reloads_per_min) == (0.0, 0.0)
        await hold(kept, "a")
        assert kept.counters().reloads == 18  # long after its eviction: no reload

    run_virtual(main())


def test_load_times_are_measured_and_estimated(store: FileStore) -> None:
    kept = slow_cache(store, Memory(), 200, Slow(40, b=90))

    async def main() -> None:
        assert kept.load_ms("d-a") == 5.0  # nothing is known
        for name in "abab":
            await hold(kept, name)
        assert kept.load_ms("d-a") == pytest.approx(40)
        assert kept.load_ms("d-b") == pytest.approx(90)
        times = kept.load_times()
        assert times.sum_ms == pytest.approx(130)
        filled = {u: n for u, n in zip(times.upper_ms, times.counts, strict=True) if n}
        assert filled == {50.0: 1, 100.0: 1}
        assert kept.load_ms("d-zz") == pytest.approx(65)  # unknown: the mean

    run_virtual(main())


def test_a32_rows_say_how_many_fit(tmp_path: Path) -> None:
    store = FileStore(tmp_path, {"a": 100, "b": 30})
    rows = cache(store, Memory(), 100).snapshot()
    assert [(r.name, r.n_bytes, r.fit) for r in rows] == [("a", 100, 1), ("b", 30, 3)]


def test_a65_more_adapters_than_fit_in_turn(store: FileStore) -> None:
    """Round robin over 8 adapters and 4 places is LRU's worst: every request waits one load."""
    kept = slow_cache(store, Memory(), 400, Slow(100), prefetch="off")

    async def main() -> None:
        waits = []
        for turn in range(40):
            asked_s = asyncio.get_running_loop().time()
            waits.append(await hold(kept, "abcdefgh"[turn % 8]) - asked_s)
        assert max(waits) == pytest.approx(0.1)
        counters = kept.counters()
        assert (counters.hits, counters.reloads) == (0, 32)
        figures = kept.by_tenant()["default"]
        assert (figures.misses, figures.wait_ms) == (40, pytest.approx(4_000))
        assert figures.longest_wait_ms == pytest.approx(100)

    run_virtual(main())
