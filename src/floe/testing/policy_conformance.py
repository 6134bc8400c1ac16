"""What every replacement policy keeps, as a list of checks to run on an implementation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from floe.adapters.policy import ReplacementPolicy, Use

Make = Callable[[], ReplacementPolicy]
BUDGET_BYTES = 100
SIZES = {f"a{i:02d}": 5 + (7 * i) % 31 for i in range(24)}


@dataclass(kw_only=True)
class Books:
    """A cache of bytes that asks a policy and trusts nothing it says."""

    policy: ReplacementPolicy
    budget_bytes: int = BUDGET_BYTES
    resident: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def request(self, use: Use, *, pinned: frozenset[str] = frozenset()) -> None:
        """One request; every promise of `victims` is checked."""
        self.policy.used(use, resident=use.key in self.resident)
        if use.key in self.resident or use.n_bytes > self.budget_bytes:
            return
        evictable = {k: b for k, b in self.resident.items() if k not in pinned}
        need = sum(self.resident.values()) + use.n_bytes - self.budget_bytes
        if need > sum(evictable.values()):
            return
        if need > 0:
            self.evict(need, evictable, use.at_s)
        self.resident[use.key] = use.n_bytes
        assert sum(self.resident.values()) <= self.budget_bytes
        self.policy.admitted(use)

    def evict(self, need: int, evictable: dict[str, int], at_s: float) -> None:
        """Ask for victims, check them, free them."""
        before = dict(evictable)
        victims = self.policy.victims(need, evictable, at_s=at_s)
        assert evictable == before, "victims() changed the mapping"
        assert victims == self.policy.victims(need, evictable, at_s=at_s), "victims() is not pure"
        assert len(set(victims)) == len(victims) and set(victims) <= set(evictable)
        assert sum(evictable[k] for k in victims) >= need
        for key in victims:
            del self.resident[key]
            self.policy.evicted(key)
            self.gone.append(key)


def a_use(key: str, at_s: float) -> Use:
    """A request for one of SIZES."""
    return Use(key=key, n_bytes=SIZES[key], load_ms=1.0 + SIZES[key] / 10, at_s=at_s)


def walk(books: Books, *, n: int = 400, seed: int = 0, forgetting: bool = True) -> None:
    """Skewed requests with a scan now and then, pins, and adapters that go for good."""
    rng = random.Random(seed)
    keys = list(SIZES)
    for t in range(n):
        key = keys[t % len(keys)] if t % 90 < 30 else keys[min(int(rng.expovariate(0.2)), 23)]
        pinned = frozenset(rng.sample(sorted(books.resident), min(2, len(books.resident))))
        books.request(a_use(key, 0.5 * t), pinned=pinned)
        if forgetting and rng.random() < 0.02:
            gone = rng.choice(keys)
            books.resident.pop(gone, None)
            books.policy.forget(gone)


def bytes_stay_within_the_budget(make: Make) -> None:
    """After every step, with pins and forgotten adapters (bug-log F02, F05, F19)."""
    books = Books(policy=make())
    walk(books)
    assert len(books.gone) > 50


def too_big_an_adapter_evicts_nothing(make: Make) -> None:
    """It is only asked for; the rest goes on as before (F01)."""
    books = Books(policy=make())
    walk(books, n=60)
    held = dict(books.resident)
    books.request(Use(key="giant", n_bytes=BUDGET_BYTES + 1, load_ms=50.0, at_s=31.0))
    assert books.resident == held
    walk(books, n=60, seed=1)
    books.policy.forget("giant")


def asking_for_too_much_ends(make: Make) -> None:
    """All that may go is named once, in bounded time, and what is pinned never is (F04)."""
    policy = make()
    books = Books(policy=policy)
    walk(books, n=60, forgetting=False)
    everything = policy.victims(10 * BUDGET_BYTES, books.resident, at_s=31.0)
    assert sorted(everything) == sorted(books.resident)
    assert policy.victims(10 * BUDGET_BYTES, {}, at_s=31.0) == []
    assert policy.victims(0, books.resident, at_s=31.0) == []
    one = dict(list(books.resident.items())[:1])
    assert policy.victims(10 * BUDGET_BYTES, one, at_s=31.0) == list(one)


def unknown_residents_can_go(make: Make) -> None:
    """What was in memory before the policy came is a victim like any other."""
    assert set(make().victims(9, {"before": 5, "also": 5}, at_s=0.0)) == {"before", "also"}


def the_same_seed_gives_the_same_victims(make: Make) -> None:
    """Two policies made alike decide alike."""
    one, two = Books(policy=make()), Books(policy=make())
    walk(one)
    walk(two)
    assert one.gone == two.gone


def unknown_names_are_harmless(make: Make) -> None:
    """Forgetting or evicting what was never there, twice; using again what was forgotten (F19)."""
    policy = make()
    policy.forget("never")
    policy.evicted("never")
    use = a_use("a00", 0.0)
    policy.used(use, resident=False)
    policy.admitted(use)
    policy.forget("a00")
    policy.forget("a00")
    policy.used(use, resident=False)
    policy.admitted(use)
    assert policy.victims(1, {"a00": use.n_bytes}, at_s=1.0) == ["a00"]


def likely_is_ordered_and_bounded(make: Make) -> None:
    """At most `limit` names, each once, with chances in [0, 1]."""
    books = Books(policy=make())
    walk(books, n=200, forgetting=False)
    found = books.policy.likely(at_s=101.0, limit=5)
    assert len(found) <= 5 and len({key for key, _ in found}) == len(found)
    assert all(0.0 <= chance <= 1.0 for _, chance in found)
    assert list(books.policy.likely(at_s=101.0, limit=0)) == []


def prefetched_adapters_are_taken(make: Make) -> None:
    """An adapter that was never asked for may be admitted, and may go."""
    books = Books(policy=make())
    walk(books, n=60, forgetting=False)
    key = next(k for k in SIZES if k not in books.resident)
    use = a_use(key, 31.0)
    need = sum(books.resident.values()) + use.n_bytes - BUDGET_BYTES
    if need > 0:
        books.evict(need, dict(books.resident), 31.0)
    books.resident[key] = use.n_bytes
    books.policy.admitted(use, prefetched=True)
    walk(books, n=100, seed=2)


def its_state_goes_round(make: Make) -> None:
    """Through JSON and back: the same state, and a policy that works."""
    books = Books(policy=make())
    walk(books, n=200)
    state = json.loads(json.dumps(books.policy.state()))
    fresh = make()
    fresh.restore(state)
    assert json.loads(json.dumps(fresh.state())) == state
    walk(Books(policy=fresh), n=200, seed=3)


CHECKS: tuple[Callable[[Make], None], ...] = (
    bytes_stay_within_the_budget,
    too_big_an_adapter_evicts_nothing,
    asking_for_too_much_ends,
    unknown_residents_can_go,
    the_same_seed_gives_the_same_victims,
    unknown_names_are_harmless,
    likely_is_ordered_and_bounded,
    prefetched_adapters_are_taken,
    its_state_goes_round,
)
"""Everything above."""
