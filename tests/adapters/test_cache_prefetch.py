"""Loads ahead: expected ones first, then the plan, then predictions, each within bounds (A71)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from cache_toys import FileMix, FileStore, Handle, Memory, Slow, route, slow_cache

from floe.adapters.cache import AdapterCache
from floe.adapters.mix import mix_digest
from floe.adapters.recency import Recency
from floe.adapters.shares import mix_key
from floe.core.sections import TenantConfig
from floe.testing.virtual_time import run_virtual

SIZES = dict.fromkeys("abcdefgh", 100) | {"huge": 900}


class Oracle(Recency):
    """Least recently used, with chances that the test sets."""

    name = "oracle"

    def __init__(self, chances: dict[str, float]) -> None:
        super().__init__()
        self.chances = chances
        self.told: list[tuple[str, bool]] = []

    def admitted(self, use: object, *, prefetched: bool = False) -> None:
        super().admitted(use, prefetched=prefetched)  # type: ignore[arg-type]
        self.told.append((use.key, prefetched))  # type: ignore[attr-defined]

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        best = sorted(self.chances.items(), key=lambda item: -item[1])
        return [(f"d-{n}", p) for n, p in best][:limit]


class Digests(Oracle):
    """Chances by digest."""

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        return list(self.chances.items())[:limit]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", SIZES)


async def use(kept: AdapterCache[Handle], *names: str, s: float = 0.0) -> float:
    """Seconds that the lease was waited for."""
    asked_s = asyncio.get_running_loop().time()
    async with kept.lease(route(*names)):
        waited_s = asyncio.get_running_loop().time() - asked_s
        await asyncio.sleep(s)
    return waited_s


def resident(kept: AdapterCache[Handle]) -> str:
    return "".join(n for n in SIZES if kept.is_resident(f"d-{n}"))


@pytest.mark.parametrize(("mode", "waited_s"), [("both", 0.0), ("queue", 0.0), ("off", 0.1)])
def test_a71_an_expected_request_finds_its_adapter_loaded(
    store: FileStore, mode: str, waited_s: float
) -> None:
    kept = slow_cache(store, Memory(), 400, Slow(100), prefetch=mode)

    async def main() -> None:
        with kept.expect(route("b")):
            await use(kept, "a", s=0.5)  # a batch runs
            assert await use(kept, "b") == pytest.approx(waited_s)

    run_virtual(main())
    counters = kept.counters()
    ahead = int(mode != "off")
    assert (counters.prefetches, counters.prefetch_used, counters.prefetch_wasted) == (
        ahead,
        ahead,
        0,
    )
    assert counters.hits == ahead and counters.misses == 2 - ahead


def test_a71_an_expected_adapter_evicts_neither_leased_nor_expected_ones(store: FileStore) -> None:
    kept = slow_cache(store, Memory(), 300, Slow(100))

    async def main() -> None:
        await use(kept, "c")
        with kept.expect(route("a")), kept.expect(route("b")), kept.expect(route("d")):
            async with kept.lease(route("e")):
                await asyncio.sleep(3)
                assert resident(kept) == "abe"  # c gave way; d waits for room
        assert kept.counters().prefetch_wasted == 0

    run_virtual(main())


def test_a71_what_is_no_longer_expected_is_not_loaded(store: FileStore) -> None:
    memory, slow = Memory(), Slow(100)
    kept = slow_cache(store, memory, 400, slow)

    async def main() -> None:
        with kept.expect(route("a", "b", "c")):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert slow.order == ["a"]
        for name in "defgh":
            await use(kept, name)
        assert kept.counters().prefetch_wasted == 1

    run_virtual(main())


def test_requests_come_before_loads_ahead(store: FileStore) -> None:
    """A load ahead that runs is waited for, but no second one gets in between."""
    slow = Slow(100)
    kept = slow_cache(store, Memory(), 400, slow)

    async def main() -> None:
        with kept.expect(route("a", "b")):
            await asyncio.sleep(0.05)
            assert await use(kept, "c") == pytest.approx(0.15)
            await asyncio.sleep(1)
        assert slow.order == ["a", "c", "b"]

    run_virtual(main())


def test_likely_adapters_are_loaded_when_nothing_else_is_to_do(store: FileStore) -> None:
    policy = Oracle({"a": 0.9, "b": 0.5, "c": 0.001})
    kept = slow_cache(store, Memory(), 800, Slow(100), policy=policy)

    async def main() -> None:
        await use(kept, "d")
        await asyncio.sleep(1)
        assert resident(kept) == "abd"
        assert await use(kept, "a") == 0.0
        counters = kept.counters()
        assert (counters.prefetches, counters.prefetch_used) == (2, 1)
        assert policy.told[:3] == [("d-d", False), ("d-a", True), ("d-b", True)]

    run_virtual(main())


def test_predicted_adapters_fill_a_quarter_of_the_budget_until_they_are_used(
    store: FileStore,
) -> None:
    policy = Oracle({n: 0.5 - i / 100 for i, n in enumerate("abcdefg")})
    kept = slow_cache(store, Memory(), 800, Slow(100), policy=policy)

    async def main() -> None:
        await use(kept, "h")
        await asyncio.sleep(5)
        assert resident(kept) == "abh"
        await use(kept, "a")
        await asyncio.sleep(5)
        assert resident(kept) == "abch" and kept.counters().prefetches == 3

    run_virtual(main())


def test_mixes_are_not_predicted_and_what_is_gone_is_no_failure_then(
    store: FileStore, tmp_path: Path
) -> None:
    """The policy knows mixes by their identity, which no store has."""
    mixed = route("a", "b")
    key = mix_digest(mix_key(mixed.shares))
    policy = Digests({key: 0.9, "d-gone": 0.8, "d-c": 0.7})
    store.broken.add("gone")
    kept = slow_cache(
        store, Memory(), 100_000, Slow(100), policy=policy, mix=FileMix(tmp_path / "mixes", 200)
    )
    looked: list[str] = []
    find = store.find
    store.find = lambda name, digest: (looked.append(digest), find(name, digest))[1]  # type: ignore[method-assign]

    async def main() -> None:
        async with kept.lease(mixed, expected_tokens=10_000) as leased:
            assert len(leased) == 1
        await kept.forget("d-a")  # and every mix of it
        await asyncio.sleep(3)
        assert resident(kept) == "c"
        assert key not in looked and "d-gone" in looked
        assert kept.counters().failures == 0

    run_virtual(main())


def test_a_prediction_evicts_nothing_that_is_worth_as_much(store: FileStore) -> None:
    policy = Oracle({"a": 0.5, "b": 0.45, "c": 0.55})
    kept = slow_cache(store, Memory(), 400, Slow(100), policy=policy)

    async def main() -> None:
        with kept.expect(route("a", "b")):
            await asyncio.sleep(1)
        await use(kept, "a", "b")
        policy.chances |= {"d": 0.0, "e": 0.0}
        await use(kept, "d", "e")
        await use(kept, "a", "b")
        await asyncio.sleep(3)
        assert resident(kept) == "abce"  # d, which is worth nothing, went for c
        policy.chances["f"] = 0.54
        await use(kept, "c", "a", "b", "e")
        policy.chances["e"] = 0.5
        await asyncio.sleep(3)
        assert resident(kept) == "abce"  # f is hardly likelier than what would go for it

    run_virtual(main())


def test_a71_predictions_that_fail_pause(store: FileStore) -> None:
    policy = Oracle({"h": 0.9})
    kept = slow_cache(store, Memory(), 400, Slow(10), policy=policy)

    async def main() -> None:
        for turn in range(40):
            await use(kept, *"abcd"[turn % 4 :], *"abcd"[: turn % 4])
            await asyncio.sleep(1.2)  # h is brought in, and thrown out by the next request
        counters = kept.counters()
        assert counters.prefetch_used == 0
        assert 8 <= counters.prefetch_wasted <= 9
        await asyncio.sleep(61)
        await use(kept, "a")
        await asyncio.sleep(1.2)
        assert kept.counters().prefetches > counters.prefetches

    run_virtual(main())


def test_predictions_take_nothing_that_is_guaranteed(store: FileStore) -> None:
    policy = Oracle({"a": 0.9})
    kept = slow_cache(
        store, Memory(), 400, Slow(10), policy=policy,
        tenants={"t": TenantConfig(guaranteed_bytes=400)},
    )  # fmt: skip

    async def main() -> None:
        async with kept.lease(route("b", "c", "d", "e"), tenant="t"):
            pass
        await asyncio.sleep(5)
        assert resident(kept) == "bcde"

    run_virtual(main())


def test_the_plan_is_loaded_and_protected_a_little_longer_than_it_holds(store: FileStore) -> None:
    kept = slow_cache(store, Memory(), 300, Slow(100))

    async def main() -> None:
        kept.prefer(["d-a", "d-b"])
        await asyncio.sleep(1)
        assert resident(kept) == "ab"
        for name in "cdefgh":
            await use(kept, name)
        assert resident(kept) == "abh"
        await use(kept, "c", "d", "e")  # three are needed at once: the plan gives way
        await asyncio.sleep(2)
        assert set("ab") <= set(resident(kept))  # and comes back
        kept.prefer([])
        await use(kept, "f")
        await use(kept, "g")
        assert set("ab") <= set(resident(kept))
        await asyncio.sleep(31)
        await use(kept, "c")
        await use(kept, "d")
        assert set("ab") & set(resident(kept)) != set("ab")

    run_virtual(main())


def test_a_plan_larger_than_the_budget_settles(store: FileStore) -> None:
    slow = Slow(100)
    kept = slow_cache(store, Memory(), 300, slow)

    async def main() -> None:
        kept.prefer([f"d-{n}" for n in "abcdefgh"])
        await asyncio.sleep(60)
        assert resident(kept) == "abc"
        assert slow.order == ["a", "b", "c"]

    run_virtual(main())


def test_f01_what_does_not_fit_or_fails_is_not_tried_again_and_again(store: FileStore) -> None:
    memory, slow = Memory(fail={"d-a"}), Slow(10)
    kept = slow_cache(store, memory, 300, slow)

    async def main() -> None:
        await use(kept, "b")
        with kept.expect(route("huge", "a")):
            await asyncio.sleep(20)
            await use(kept, "c")
            await asyncio.sleep(5)
        assert slow.order == ["b", "a", "c"]
        assert resident(kept) == "bc"
        assert kept.counters().failures == 1

    run_virtual(main())


def test_an_adapter_that_is_gone_is_not_looked_for_all_the_time(store: FileStore) -> None:
    kept = slow_cache(store, Memory(), 300, Slow(10))
    store.broken.add("a")

    async def main() -> None:
        kept.prefer(["d-a", "d-b"])
        with kept.expect(route("a")):
            await asyncio.sleep(20)
        assert resident(kept) == "b"
        assert kept.counters().failures == 1

    run_virtual(main())


def test_f07_a_fault_while_loading_ahead_is_told(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    kept = slow_cache(store, Memory(), 300, Slow(10))
    store.stored.pop("a")  # the toy store raises a KeyError, as a bug would

    async def main() -> None:
        kept.prefer(["d-a"])
        await asyncio.sleep(1)
        assert kept.notes == ("loading adapters ahead failed: KeyError",)
        assert await use(kept, "b") == pytest.approx(0.01)
        kept.prefer(["d-c"])
        await asyncio.sleep(1)
        assert resident(kept) == "bc" and kept.notes == ()

    run_virtual(main())
    assert len(caplog.records) == 1


def test_predictions_come_though_nobody_asks(store: FileStore) -> None:
    """A policy that knows the hour may fetch before the first request of the morning."""
    policy = Oracle({"b": 0.0})
    kept = slow_cache(store, Memory(), 400, Slow(10), policy=policy)

    async def main() -> None:
        await use(kept, "a")
        await asyncio.sleep(100)
        policy.chances["b"] = 0.8
        await asyncio.sleep(1.5)
        assert resident(kept) == "ab"

    run_virtual(main())


def test_what_is_not_worth_predicting_is_still_loaded_when_expected(store: FileStore) -> None:
    policy = Oracle({"a": 0.5, "b": 0.5, "c": 0.4})
    kept = slow_cache(store, Memory(), 200, Slow(10), policy=policy)

    async def main() -> None:
        await use(kept, "a", "b")
        await asyncio.sleep(0.5)  # c was thought of, and turned down
        with kept.expect(route("c")):
            await asyncio.sleep(0.1)
            assert kept.is_resident("d-c")

    run_virtual(main())
