"""The cache against a naive model, and under random interleavings."""

from __future__ import annotations

import asyncio
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

from floe.core.errors import BadAdapter, Busy

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
        self.cache = cache(self.store, self.memory, budget)
        self.order: OrderedDict[str, int] = OrderedDict()  # name -> pins, oldest first
        self.open: list[tuple[AsyncExitStack, Any, tuple[str, ...]]] = []
        self.hits = self.misses = 0

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
        for name in list(self.order):
            if sum(SIZES[n] for n in self.order) + need <= self.budget:
                break
            if name not in kept:
                del self.order[name]
        for name in names:
            self.hits += name in self.order
            self.misses += name not in self.order
            self.order[name] = self.order.get(name, 0) + 1
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


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1 << 30), budget=st.integers(50, 120))
def test_random_interleavings_keep_every_promise(files: Path, seed: int, budget: int) -> None:
    rng = random.Random(seed)
    store, memory = FileStore(files, SIZES), Memory(fail={"d-c"} if seed % 3 == 0 else set())
    kept = cache(store, memory, budget)
    outcomes: list[str] = []

    async def request() -> None:
        names = rng.sample(sorted(SIZES), rng.randint(1, 2))
        try:
            async with kept.lease(route(*names)) as leased:
                for _ in range(rng.randint(0, 6)):
                    await asyncio.sleep(0)
                    assert all(h.is_loaded and h in memory.held for h, _ in leased)
            outcomes.append("ok")
        except (Busy, BadAdapter) as error:
            outcomes.append(type(error).__name__)

    async def scene() -> None:
        tasks = []
        for _ in range(15):
            tasks.append(asyncio.create_task(request()))
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            kept.check_integrity()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(r is None or isinstance(r, asyncio.CancelledError) for r in done), done
        await settled(kept)

    asyncio.run(scene())
    kept.check_integrity()
    assert memory.peak_bytes <= budget
    assert kept.counters().leased == 0
    assert kept.counters().resident_bytes == sum(h.n_bytes for h in memory.held)
