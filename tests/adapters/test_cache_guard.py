"""A policy that misbehaves is switched off loudly; requests go on (bug-log F07)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cache_toys import FileStore, Memory, cache, route
from hypothesis import given
from hypothesis import strategies as st

from floe.adapters.policies import POLICIES, make_policy
from floe.adapters.policy import Use
from floe.adapters.recency import GuardedPolicy, Recency

SIZES = {"a": 100, "b": 100, "c": 100, "d": 100}


class Bad(Recency):
    """Least recently used, but for one answer."""

    name = "bad"

    def __init__(self, answer: object = None, likely: object = ()) -> None:
        super().__init__()
        self._answer, self._likely = answer, likely

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        return self._likely  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (KeyError("x"), "it raised KeyError"),
        (["d-zz"], "it named a victim that may not be evicted"),
        (["d-b", "d-b"], "it named a victim twice"),
        ([], "its victims do not free enough"),
        ("d-b", "its victims are not a list of keys"),
        ([7], "its victims are not a list of keys"),
        (None, "its victims are not a list of keys"),
    ],
)
async def test_f07_a_wrong_answer_ends_the_policy_not_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: object, why: str
) -> None:
    memory = Memory()
    kept = cache(FileStore(tmp_path, SIZES), memory, 200, policy=Bad(answer), prefetch="off")
    assert kept.policy_name == "bad"
    with caplog.at_level(logging.ERROR, logger="floe.adapters"):
        for name in ("a", "b", "c", "d", "b"):
            async with kept.lease(route(name)):
                pass
    assert memory.unloads == ["d-a", "d-b", "d-c"]  # as least recently used would
    assert kept.policy_name == "lru"
    assert kept.counters().policy_faults == 1
    assert len(caplog.records) == 1
    [note] = kept.notes
    assert note == (
        f"replacement policy 'bad' was switched off: {why}. Least recently used adapters are "
        "evicted until the next start"
    )
    assert kept.failure == ""


async def test_f07_a_leased_adapter_named_as_victim_stays(tmp_path: Path) -> None:
    memory = Memory()
    kept = cache(FileStore(tmp_path, SIZES), memory, 200, policy=Bad(["d-a"]))
    async with kept.lease(route("a")) as leased:
        for name in ("b", "c"):
            async with kept.lease(route(name)):
                pass
        assert leased[0][0].is_loaded
    assert kept.counters().policy_faults == 1


@pytest.mark.parametrize("likely", [[("d-b", 2.0)], [("d-b", float("nan"))], [("d-b",)], [3], 5])
async def test_f07_predictions_that_are_none_end_the_policy(tmp_path: Path, likely: object) -> None:
    kept = cache(FileStore(tmp_path, SIZES), Memory(), 200, policy=Bad(["d-b"], likely))
    async with kept.lease(route("a")):
        pass
    async with kept.lease(route("a")):
        pass
    assert kept.counters().policy_faults == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(steps=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60))
def test_f02_every_policy_passes_the_guard_and_frees_enough(
    name: str, steps: list[tuple[str, bool]]
) -> None:
    """Used bytes stay within the capacity after every step, whatever is pinned."""
    sizes = {key: 10 + 7 * i for i, key in enumerate("abcdefgh")}
    policy, resident, capacity = GuardedPolicy(make_policy(name)), dict[str, int](), 120
    for at, (key, is_pinned) in enumerate(steps):
        use = Use(key=key, n_bytes=sizes[key], load_ms=1.0, at_s=float(at))
        policy.used(use, resident=key in resident)
        if key in resident:
            continue
        need = sizes[key] - (capacity - sum(resident.values()))
        pinned = set(sorted(resident)[:1]) if is_pinned else set()
        free = {k: n for k, n in resident.items() if k not in pinned}
        victims = policy.victims(need, free, at_s=float(at))
        assert set(victims) <= free.keys() and len(set(victims)) == len(victims)
        if sum(free.values()) < need:
            continue
        assert sum(free[v] for v in victims) >= need
        for victim in victims:
            del resident[victim]
            policy.evicted(victim)
        resident[key] = sizes[key]
        policy.admitted(use)
        assert sum(resident.values()) <= capacity
    assert policy.faults == 0
    assert policy.name == name


def test_recency_has_nothing_to_learn() -> None:
    policy = Recency()
    policy.restore(policy.state())
    assert policy.state() == {} and policy.likely(at_s=0.0, limit=3) == ()
    assert policy.victims(10, {"x": 4}, at_s=0.0) == ["x"]
