"""The cache against a naive model, and under random interleavings."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cache_toys import FileStore, Memory, cache, route, settled
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from floe.adapters.policies import POLICIES, make_policy
from floe.core.errors import BadAdapter, Busy
from floe.core.sections import TenantConfig

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 50}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


class Leases(RuleBasedStateMachine):
    """Sequential leases: every answer and the resident set equal those of an ordered dict."""

    root: Path

    @initialize(budget=st.integers(0, 120))
    def begin(self, budget: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.store, self.memory, self.budget = FileStore(self.root, SIZES), Memory(), budget
        self.cache = cache(self.store, self.memory, budget, prefetch="off")
        self.order: OrderedDict[str, int] = OrderedDict()  # name -> pins, oldest first
        self.open: list[tuple[AsyncExitStack, Any, tuple[str, ...]]] = []
        self.hits = self.misses = 0
        self.doomed: set[str] = set()
        self.preferred: set[str] = set()
        self.settling: set[str] = set()  # the clock of this test does not move

    def expected(self, names: tuple[str, ...]) -> type[Exception] | None:
        """Apply the lease to the naive model, or say how it fails."""
        if any(n in self.store.broken and n not in self.order for n in names):
            return BadAdapter
        if sum(SIZES[n] for n in names) > self.budget:
            return BadAdapter
        for name in names:
            if name in self.order:
                self.order.move_to_end(name)
        kept = {n for n, pins in self.order.items() if pins or n in names}
        if sum(SIZES[n] for n in kept | set(names)) > self.budget:
            return Busy
        missing = [n for n in names if n not in self.order]
        need = sum(SIZES[n] for n in missing)
        for name in sorted(self.order, key=lambda n: n in self.settling):  # stable: oldest first
            if sum(SIZES[n] for n in self.order) + need <= self.budget:
                break
            if name not in kept:
                del self.order[name]
        for name in names:
            self.hits += name in self.order
            self.misses += name not in self.order
            self.order[name] = self.order.get(name, 0) + 1
            self.doomed.discard(name)
        return None

    @rule(names=st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3, unique=True))
    def lease(self, names: list[str]) -> None:
        expected = self.expected(tuple(names))
        stack = AsyncExitStack()
        enter = stack.enter_async_context(self.cache.lease(route(*names)))
        if expected is None:
            leased = self.loop.run_until_complete(enter)
            self.open.append((stack, leased, tuple(names)))
        else:
            with pytest.raises(expected):
                self.loop.run_until_complete(enter)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        stack, _, names = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.loop.run_until_complete(stack.aclose())
        for name in names:
            self.order[name] -= 1
            self.bury(name)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def forget(self, name: str) -> None:
        """Gone at once, or with its last lease unless somebody asks for it before."""
        self.loop.run_until_complete(self.cache.forget(f"d-{name}"))
        self.preferred.discard(name)
        self.settling.discard(name)
        if name in self.order:
            self.doomed.add(name)
            self.bury(name)

    def bury(self, name: str) -> None:
        if name in self.doomed and not self.order[name]:
            del self.order[name]
            self.doomed.discard(name)
            self.loop.run_until_complete(settled(self.cache))

    @rule(names=st.lists(st.sampled_from(sorted(SIZES)), max_size=5, unique=True))
    def prefer(self, names: list[str]) -> None:
        """Without loads ahead it protects; the naive model puts the protected last."""
        self.cache.prefer([f"d-{n}" for n in names])
        self.preferred = set(names)
        self.settling |= set(names)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def toggle(self, name: str) -> None:
        self.store.broken ^= {name}

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        assert sorted(h.key for h in self.memory.held) == sorted(f"d-{n}" for n in self.order)
        assert all(h.is_loaded for _, leased, _ in self.open for h, _ in leased)
        assert self.memory.peak_bytes <= self.budget
        counters = self.cache.counters()
        assert (counters.hits, counters.misses) == (self.hits, self.misses)
        assert counters.leased == sum(self.order.values())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for stack, _, _ in self.open:
                self.loop.run_until_complete(stack.aclose())
            assert self.cache.counters().leased == 0
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def test_leases_equal_the_naive_model(files: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    Leases.root = files
    run_state_machine_as_test(
        Leases, settings=settings(deadline=None, max_examples=40, stateful_step_count=25)
    )


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    budget=st.integers(50, 120),
    policy=st.sampled_from(sorted(POLICIES)),
    wait_ms=st.sampled_from([0, 1, 60_000]),
    max_overtaken=st.integers(0, 3),
)
def test_f11_random_interleavings_keep_every_promise(
    files: Path, seed: int, budget: int, policy: str, wait_ms: int, max_overtaken: int
) -> None:
    """Leases, cancellations, plans, expectations and removals in any order, under any policy."""
    rng = random.Random(seed)
    store, memory = FileStore(files, SIZES), Memory(fail={"d-c"} if seed % 3 == 0 else set())
    tenants = {"t": TenantConfig(guaranteed_bytes=rng.randint(0, 50), share=2.0, priority=seed % 2)}
    kept = cache(
        store, memory, budget, policy=make_policy(policy), tenants=tenants, wait_ms=wait_ms,
        max_overtaken=max_overtaken, pinned=("a",) if seed % 5 == 0 else (),
    )  # fmt: skip

    async def request() -> None:
        names = rng.sample(sorted(SIZES), rng.randint(1, 2))
        tenant = rng.choice(["t", "default", "other"])
        with contextlib.ExitStack() as stack:
            if rng.random() < 0.3:
                stack.enter_context(kept.expect(route(*names)))
                await asyncio.sleep(0)
            with contextlib.suppress(Busy, BadAdapter):
                async with kept.lease(route(*names), tenant=tenant) as leased:
                    for _ in range(rng.randint(0, 6)):
                        await asyncio.sleep(0)
                        assert all(h.is_loaded and h in memory.held for h, _ in leased)

    async def scene() -> None:
        tasks = []
        for _ in range(20):
            tasks.append(asyncio.create_task(request()))
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.2:
                tasks.append(asyncio.create_task(kept.forget(f"d-{rng.choice(sorted(SIZES))}")))
            if rng.random() < 0.2:
                kept.prefer([f"d-{n}" for n in rng.sample(sorted(SIZES), 2)])
            kept.check_integrity()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(r is None or isinstance(r, asyncio.CancelledError) for r in done), done
        await settled(kept)

    asyncio.run(scene())
    kept.check_integrity()
    assert kept.failure == "" and kept.counters().policy_faults == 0
    assert memory.peak_bytes <= budget
    assert kept.counters().leased == kept.counters().waiting == 0
    assert kept.counters().resident_bytes == sum(h.n_bytes for h in memory.held)
