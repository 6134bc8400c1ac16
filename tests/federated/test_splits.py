"""Clusters that hide two tasks are split by what their members changed from one start."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import state
from hypothesis import given
from hypothesis import strategies as st

from floe.federated.clusters import Cluster, Clustering
from floe.federated.products import state_difference, state_scaled
from floe.federated.splits import split_clusters
from floe.federated.update import AdapterState

pytest.importorskip("scipy", reason="grouping needs scipy, of the extra `fed`")
WIDE = {"q": (30, 40), "k": (20, 40)}


def clustering(*groups: tuple[str, ...], **options: object) -> Clustering:
    clusters = tuple(
        Cluster(id=f"c{i}", members=members, cohesion=1.0) for i, members in enumerate(groups)
    )
    shares = {m: {c.id: 1.0} for c in clusters for m in c.members}
    given_ = {"silhouette": 0.3, "memberships": shares, "next_id": len(groups), **options}
    return Clustering(clusters=clusters, **given_)  # type: ignore[arg-type]


def changes(tasks: dict[str, int], *, noise: float, seed: int = 0) -> dict[str, AdapterState]:
    """Each member's change: its task's, and one of its own."""
    rng = np.random.default_rng(seed)
    known = {t: state(np.random.default_rng(500 + t), 3, WIDE) for t in set(tasks.values())}
    return {
        name: state_difference(known[task], state_scaled(state(rng, 3, WIDE), -noise))
        for name, task in tasks.items()
    }


def members(found: Clustering) -> list[tuple[str, ...]]:
    return [c.members for c in found.clusters]


def test_two_tasks_in_one_cluster_are_split_and_ids_are_new() -> None:
    before = clustering(("a", "b", "c", "d"), ("e", "f"))
    seen = changes({"a": 0, "b": 1, "c": 0, "d": 1, "e": 2, "f": 2}, noise=1.0)
    found = split_clusters(before, seen, previous=before)
    assert members(found) == [("a", "c"), ("e", "f"), ("b", "d")]
    assert [c.id for c in found.clusters] == ["c0", "c1", "c2"]
    assert (found.next_id, found.split) == (3, ("c0", "c2"))
    assert found.memberships["d"] == {"c2": 1.0}
    assert Clustering.from_json(found.as_json()) == found


@given(st.integers(4, 9), st.integers(0, 50), st.floats(0.2, 3.0))
def test_one_task_is_never_split(n: int, seed: int, noise: float) -> None:
    before = clustering(tuple("abcdefghi"[:n]))
    seen = changes(dict.fromkeys("abcdefghi"[:n], 0), noise=noise, seed=seed)
    assert split_clusters(before, seen, previous=before) == before


def test_a_device_alone_is_not_split_off() -> None:
    before = clustering(tuple("abcd"))
    seen = changes({"a": 0, "b": 0, "c": 0, "d": 1}, noise=0.3)
    assert members(split_clusters(before, seen, previous=before)) == [tuple("abcd")]


def test_changes_from_different_starts_are_not_compared() -> None:
    now = clustering(("a", "b", "c", "d"))
    seen = changes({"a": 0, "b": 0, "c": 1, "d": 1}, noise=0.3)
    assert split_clusters(now, seen, previous=None) == now
    apart = clustering(("a", "b"), ("c", "d"))
    assert members(split_clusters(now, seen, previous=apart)) == [tuple("abcd")]


def test_what_was_split_stays_apart_when_adapters_look_alike_again() -> None:
    before = clustering(("a", "c"), ("e", "f"), ("b", "d"), split=("c0", "c2"))
    now = clustering(("a", "b", "c", "d", "new"), ("e", "f"), next_id=3)
    found = split_clusters(now, {}, previous=before)
    assert members(found) == [("a", "c", "new"), ("e", "f"), ("b", "d")]
    assert found.split == ("c0", "c2")
    assert [c.id for c in found.clusters] == ["c0", "c1", "c2"]


def test_a_member_that_came_later_stays_with_the_first_part() -> None:
    before = clustering(("a", "b", "c", "d"))
    now = clustering(("a", "b", "c", "d", "late"))
    seen = changes({"a": 0, "b": 0, "c": 1, "d": 1, "late": 1}, noise=0.5)
    assert members(split_clusters(now, seen, previous=before)) == [("a", "b", "late"), ("c", "d")]
