"""Leases: coalesced, pinned, bounded in bytes, and one bad adapter harms nobody."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import adapter_toys as toys
import pytest
from cache_toys import FileMix, FileStore, Handle, Memory, cache, route

from floe.adapters.cache import AdapterCache
from floe.adapters.mix import MixCache
from floe.adapters.store import AdapterStore
from floe.core.errors import BadAdapter, BadRequest, Busy
from floe.core.route import Route, Share, TooLarge

SIZES = {"a": 100, "b": 100, "c": 100, "big": 150}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", SIZES)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def names(memory: Memory) -> list[str]:
    return sorted(h.key.removeprefix("d-") for h in memory.held)


async def use(kept: AdapterCache[Handle], *wanted: str) -> None:
    async with kept.lease(route(*wanted)) as leased:
        assert [h.key for h, _ in leased] == [f"d-{n}" for n in wanted]
        assert all(h.is_loaded for h, _ in leased)
    kept.check_integrity()


async def test_a26_the_base_needs_no_room(store: FileStore, memory: Memory) -> None:
    async with cache(store, memory, 0).lease(Route()) as leased:
        assert list(leased) == []
    assert memory.loads == []


async def test_a_lease_gives_handles_with_weights(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 200)
    shares = (Share(name="a", digest="d-a", weight=0.75), Share(name="b", digest="d-b", weight=-1))
    async with kept.lease(Route(shares=shares)) as leased:
        assert [(h.key, w) for h, w in leased] == [("d-a", 0.75), ("d-b", -1)]
        assert kept.counters().pinned_bytes == 200
        assert kept.counters().leased == 2
    after = kept.counters()
    assert (after.leased, after.pinned_bytes, after.resident_bytes, after.resident) == (
        0,
        0,
        200,
        2,
    )
    assert threading.get_ident() not in memory.threads  # A25: off the serving thread


async def test_repeated_shares_add_up_and_zero_is_not_loaded(
    store: FileStore, memory: Memory
) -> None:
    shares = [
        Share(name=n, digest=f"d-{n}", weight=w) for n, w in (("a", 0.5), ("b", 0), ("a", 0.25))
    ]
    async with cache(store, memory, 200).lease(Route(shares=tuple(shares))) as leased:
        assert [(h.key, w) for h, w in leased] == [("d-a", 0.75)]
    assert memory.loads == ["d-a"]


async def test_a20_weights_that_are_not_finite_are_refused(
    store: FileStore, memory: Memory
) -> None:
    with pytest.raises(BadRequest, match="the scale of adapter 'a' must be finite"):
        async with cache(store, memory, 200).lease(route("a", weight=float("nan"))):
            pass


async def test_the_least_recently_used_goes_first(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 200)
    for name in ("a", "b", "a", "c", "a", "b"):
        await use(kept, name)
    assert memory.unloads == ["d-b", "d-c"]
    counters = kept.counters()
    assert (counters.hits, counters.misses, counters.evictions) == (2, 4, 2)
    assert memory.peak_bytes == 200


async def test_a32_exactly_one_adapter_fits_its_own_bytes(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 100)
    await use(kept, "a")
    await use(kept, "b")
    assert (names(memory), memory.peak_bytes) == (["b"], 100)


async def test_what_can_never_fit_is_not_called_busy(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 149)
    with pytest.raises(
        BadAdapter, match="adapters a, b need 200 bytes in memory, the budget is 149"
    ):
        await use(kept, "a", "b")
    assert memory.loads == []


async def test_a26_busy_only_when_pins_fill_the_budget(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 250)
    await use(kept, "b")
    async with kept.lease(route("a")):
        await use(kept, "big")  # b gives way
        with pytest.raises(
            Busy, match="no room for 200 bytes of adapters: 100 of 250 bytes are in use"
        ):
            await use(kept, "b", "c")
        assert names(memory) == ["a", "big"]  # nothing was evicted for nothing
        assert kept.counters().leased == 1
    await use(kept, "b", "c")


async def test_a68_all_leases_of_a_moment_are_admitted_or_refused_whole(
    store: FileStore, memory: Memory
) -> None:
    kept = cache(store, memory, 300)

    async def one(*wanted: str) -> str:
        try:
            async with kept.lease(route(*wanted)):
                await asyncio.sleep(0)
            return "ok"
        except Busy:
            return "busy"

    results = await asyncio.gather(one("a", "b"), one("b", "c"), one("big"), one())
    assert results[3] == "ok"
    assert "ok" in results[:3]  # which one depends on whose file was looked up first
    assert memory.peak_bytes <= 300
    assert kept.counters().leased == 0
    kept.check_integrity()


async def start(memory: Memory, task: asyncio.Task[None]) -> None:
    """Until a load has begun."""
    await asyncio.to_thread(memory.started.acquire, timeout=10)
    assert not task.done()


async def test_one_load_under_concurrent_requests(store: FileStore, memory: Memory) -> None:
    memory.gate = threading.Event()
    kept = cache(store, memory, 200)
    tasks = [asyncio.create_task(use(kept, "a")) for _ in range(5)]
    await start(memory, tasks[0])
    memory.gate.set()
    await asyncio.gather(*tasks)
    assert memory.loads == ["d-a"]
    counters = kept.counters()
    assert (counters.misses, counters.coalesced) == (1, 4)


async def test_a08_both_waiters_get_the_error_and_a_third_may_retry(
    store: FileStore, memory: Memory
) -> None:
    memory.gate, memory.fail = threading.Event(), {"d-a"}
    kept = cache(store, memory, 100)
    tasks = [asyncio.create_task(use(kept, "a")) for _ in range(2)]
    await start(memory, tasks[0])
    memory.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(type(r), str(r)) for r in results] == [(BadAdapter, "the engine refused d-a")] * 2
    kept.check_integrity()
    assert (kept.counters().failures, kept.counters().resident_bytes) == (1, 0)
    (row, *_) = kept.snapshot()
    assert (row.state, row.reason) == ("failed", "the engine refused d-a")
    memory.fail.clear()
    await use(kept, "a")
    assert kept.snapshot()[0].state == "ready"


async def test_a07_a_missing_adapter_fails_alone(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 100)
    await use(kept, "a")
    await use(kept, "b")
    store.broken.add("a")
    with pytest.raises(BadAdapter, match="a is gone"):
        await use(kept, "a")
    await use(kept, "b")
    with pytest.raises(BadAdapter, match="a is gone"):
        await use(kept, "b", "a")
    states = {row.name: (row.state, row.tier, row.reason) for row in kept.snapshot()}
    assert states["a"] == ("failed", "none", "a is gone")
    assert states["b"] == ("ready", "memory", "")
    assert kept.counters().leased == 0


async def test_a05_a_file_changed_on_disk_fails_its_requests_only(
    tmp_path: Path, memory: Memory
) -> None:
    real = AdapterStore(tmp_path / "store", toys.model())
    good = real.add(toys.folder(tmp_path / "good"))
    bad = real.add(toys.folder(tmp_path / "bad", seed=1))
    data = bad.gguf.read_bytes()
    bad.gguf.write_bytes(data[:-1] + b"x")
    kept = AdapterCache(store=real, load=memory.load, unload=memory.unload, budget_bytes=1 << 20)
    by_name = {
        s.manifest.name: Route(
            shares=(Share(name=s.manifest.name, digest=s.manifest.digest, weight=1),)
        )
        for s in (good, bad)
    }
    with pytest.raises(BadAdapter, match=r"'bad': its file was changed on disk. Add it again"):
        async with kept.lease(by_name["bad"]):
            pass
    async with kept.lease(by_name["good"]) as leased:
        assert leased[0][0].key == good.manifest.digest
    assert {r.name: r.state for r in kept.snapshot()} == {"bad": "failed", "good": "ready"}
    bad.gguf.write_bytes(data)
    async with kept.lease(by_name["bad"]):
        pass
    good.gguf.unlink()
    async with kept.lease(by_name["good"]):
        pass  # resident: memory holds what was checked
    kept.check_integrity()


async def test_a_cancelled_wait_lets_the_load_finish_for_others(
    store: FileStore, memory: Memory
) -> None:
    memory.gate = threading.Event()
    kept = cache(store, memory, 100)
    first = asyncio.create_task(use(kept, "a"))
    await start(memory, first)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert kept.counters().leased == 0
    second = asyncio.create_task(use(kept, "b"))  # must wait: the load still fills the budget
    memory.gate.set()
    await second
    assert memory.loads == ["d-a", "d-b"]
    kept.check_integrity()
    assert memory.peak_bytes == 100
    assert kept.counters().leased == 0


async def test_a59_cancellation_inside_the_block_gives_the_lease_back(
    store: FileStore, memory: Memory
) -> None:
    kept, inside = cache(store, memory, 100), asyncio.Event()

    async def stream() -> None:
        async with kept.lease(route("a")):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stream())
    await inside.wait()
    assert kept.counters().leased == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept.counters().leased == 0
    await use(kept, "b")


async def test_a_failure_of_one_share_releases_the_others(store: FileStore, memory: Memory) -> None:
    memory.fail = {"d-b"}
    kept = cache(store, memory, 200)
    with pytest.raises(BadAdapter, match="refused d-b"):
        await use(kept, "a", "b")
    assert kept.counters().leased == 0
    kept.check_integrity()
    await use(kept, "a", "c")


async def test_a_file_larger_than_announced_is_refused(store: FileStore, memory: Memory) -> None:
    store.stored["a"].gguf.write_bytes(bytes(101))
    with pytest.raises(BadAdapter, match="'a' needs 101 bytes, more than announced"):
        await use(cache(store, memory, 200), "a")
    assert memory.loads == []


async def test_what_cannot_be_freed_still_counts(store: FileStore, memory: Memory) -> None:
    kept = cache(store, memory, 200)
    await use(kept, "a")
    await use(kept, "b")
    memory.fail_unload = True
    with pytest.raises(RuntimeError, match="cannot free"):
        await use(kept, "c")
    assert kept.counters().resident_bytes == 200
    kept.check_integrity()


async def test_a04_a_forgotten_adapter_goes_at_once_or_with_its_last_lease(
    store: FileStore, memory: Memory
) -> None:
    kept = cache(store, memory, 300)
    await use(kept, "a")
    await kept.forget("d-a")
    assert names(memory) == []
    async with kept.lease(route("a")):
        await kept.forget("d-a")
        assert names(memory) == ["a"]
    await use(kept, "b")  # loads and frees are in order, so a is gone before b is there
    assert names(memory) == ["b"]
    memory.gate, memory.started = threading.Event(), threading.Semaphore(0)
    task = asyncio.create_task(use(kept, "c"))
    await start(memory, task)
    task.cancel()
    await asyncio.wait([task])
    await kept.forget("d-c")
    memory.gate.set()
    await use(kept, "a")
    await kept.forget("d-b")  # frees in order: c, forgotten while it was loaded, is gone too
    assert names(memory) == ["a"]
    kept.check_integrity()


async def test_a23_the_listing_tells_tier_pins_size_and_last_use(
    store: FileStore, memory: Memory
) -> None:
    kept = AdapterCache(
        store=store, load=memory.load, unload=memory.unload, budget_bytes=250, clock_s=lambda: 7.0
    )
    async with kept.lease(route("a")):
        row_a, row_b, *_ = kept.snapshot()
    assert (row_a.tier, row_a.state, row_a.pins, row_a.n_bytes) == ("memory", "ready", 1, 100)
    assert (row_a.digest, row_a.rank, row_a.fit, row_a.last_used_s) == ("d-a", 4, 2, 7.0)
    assert (row_b.tier, row_b.state, row_b.pins, row_b.last_used_s) == (
        "disk",
        "registered",
        0,
        None,
    )


async def test_a34_a_load_under_way_is_shown_as_loading(store: FileStore, memory: Memory) -> None:
    memory.gate = threading.Event()
    kept = cache(store, memory, 100)
    task = asyncio.create_task(use(kept, "a"))
    await start(memory, task)
    assert kept.snapshot()[0].state == "loading"
    memory.gate.set()
    await task


async def test_a28_resident_pinned_active_and_leased_are_gauges_apart(
    store: FileStore, memory: Memory
) -> None:
    """Without traffic the resident ones are still shown as such."""
    kept = cache(store, memory, 300, pinned=("b",))
    await kept.start()

    def gauges() -> tuple[int, ...]:
        now = kept.counters()
        return now.resident, now.pinned, now.active, now.leased, now.waiting

    async with kept.lease(route("a")), kept.lease(route("a", "b")):
        assert gauges() == (2, 1, 2, 3, 0)
        assert kept.counters().leased_bytes == kept.counters().pinned_bytes == 200
    assert gauges() == (2, 1, 0, 0, 0)
    assert (kept.counters().leased_bytes, kept.counters().pinned_bytes) == (0, 100)
    assert (kept.counters().hits, kept.counters().misses, kept.counters().loads) == (2, 1, 2)


# --- mixes


async def test_a_long_answer_leases_the_composed_adapter(
    store: FileStore, memory: Memory, tmp_path: Path
) -> None:
    mix = FileMix(tmp_path / "mix", 180)
    kept = cache(store, memory, 100_000, mix)
    async with kept.lease(route("a", "b"), expected_tokens=10) as leased:
        assert [h.key for h, _ in leased] == ["d-a", "d-b"]
    async with kept.lease(route("a", "b"), expected_tokens=100) as leased:
        ((handle, weight),) = leased
        assert (weight, handle.n_bytes) == (1.0, 180)
    async with kept.lease(route("b", "a"), expected_tokens=1) as leased:
        assert leased[0][0] is handle  # composed already, so even one token pays
    async with kept.lease(route("a"), expected_tokens=1000) as leased:
        assert leased[0][0].key == "d-a"
    assert mix.asked == [(("d-a", 0.5), ("d-b", 0.5))]
    assert kept.counters().mixes == 2
    assert kept.counters().resident_bytes == 380
    kept.check_integrity()
    await kept.forget("d-b")  # A04: a mix goes with each of its parts
    assert [h.key for h in memory.held] == ["d-a"]


async def test_a_mix_without_room_is_leased_apart(
    store: FileStore, memory: Memory, tmp_path: Path
) -> None:
    kept = cache(store, memory, 200, FileMix(tmp_path / "mix", 180))
    async with kept.lease(route("a", "b"), expected_tokens=1000) as leased:
        assert [h.key for h, _ in leased] == ["d-a", "d-b"]
    assert kept.counters().mixes == 0


async def test_a_real_mix_of_a_real_store(tmp_path: Path, memory: Memory) -> None:
    real = AdapterStore(tmp_path / "store", toys.model())
    stored = [real.add(toys.folder(tmp_path / n, seed=i)) for i, n in enumerate("ab")]
    shares = tuple(
        Share(name=s.manifest.name, digest=s.manifest.digest, weight=0.5) for s in stored
    )
    mix = MixCache(
        folder=tmp_path / "mix",
        tensors=lambda digest: real.tensors(real.find("", digest)),
        max_bytes=1 << 20,
    )
    kept = AdapterCache(
        store=real, load=memory.load, unload=memory.unload, budget_bytes=1 << 20, mix=mix
    )
    async with AsyncExitStack() as stack:
        for _ in range(2):
            lease = kept.lease(Route(shares=shares), expected_tokens=1000)
            assert len(await stack.enter_async_context(lease)) == 1
    assert mix.composed_count == len(memory.loads) == 1


async def test_a_routed_mix_too_large_says_what_of_it_fits(
    store: FileStore, memory: Memory
) -> None:
    kept = cache(store, memory, 249)
    shares = [("a", 0.2), ("big", 0.5), ("b", 0.3)]
    asked = Route(
        shares=tuple(Share(name=n, digest=f"d-{n}", weight=w) for n, w in shares),
        how="routed",
        reason="by content",
    )
    with pytest.raises(TooLarge, match="adapters a, big, b need 350 bytes") as refused:
        async with kept.lease(asked):
            pass
    fitting = refused.value.fitting
    assert [(s.name, round(s.weight, 9)) for s in fitting.shares] == [("big", 1.0)]
    assert (fitting.how, fitting.reason) == ("routed", "by content; only big fit the memory")
    assert kept.counters().trimmed == 1 and memory.loads == []
    async with kept.lease(fitting) as leased:
        assert [h.key for h, _ in leased] == ["d-big"]
    kept = cache(store, memory, 250)
    with pytest.raises(TooLarge) as refused:
        async with kept.lease(asked):
            pass
    assert [(s.name, round(s.weight, 9)) for s in refused.value.fitting.shares] == [
        ("big", 0.625),
        ("b", 0.375),
    ]
    kept = cache(store, memory, 99)
    with pytest.raises(TooLarge) as refused:
        async with kept.lease(asked):
            pass
    assert refused.value.fitting.shares == () and kept.counters().trimmed == 0
