from __future__ import annotations

import json
import sys
from typing import ClassVar

import numpy as np
import pytest
from array_cases import flat_state, product, state
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRound, Missing
from floe.federated.clusters import Clustering, group, group_similar, match, stable_ids
from floe.federated.products import principal_angles, state_difference, state_scaled
from floe.federated.silhouette import beyond_one_task, silhouette
from floe.federated.similarity import similarity
from floe.federated.sketches import Sketcher, sketch_similarity
from floe.federated.update import AdapterState, Factors

pytest.importorskip("scipy", reason="grouping needs scipy, of the extra `fed`")
WIDE = {"q": (30, 40), "k": (20, 40)}


def joined(*parts: AdapterState) -> AdapterState:
    """The sum of adapters."""
    total = parts[0]
    for part in parts[1:]:
        total = state_difference(total, state_scaled(part, -1.0))
    return total


def devices(
    tasks: list[int], *, noise: float = 0.5, start: AdapterState | None = None, seed: int = 0
) -> dict[str, AdapterState]:
    """A device per task number: its task's change, its own, and the start."""
    rng = np.random.default_rng(seed)
    known = {t: state(np.random.default_rng(1000 + t), 3, WIDE) for t in set(tasks)}
    out = {}
    for i, task in enumerate(tasks):
        parts = [known[task], state_scaled(state(rng, 2 + i % 3, WIDE), noise)]
        out[f"d{i:02}"] = joined(*([start] if start else []), *parts)
    return out


def adjusted_rand(one: list[int], other: list[int]) -> float:
    """Agreement of two groupings, 1 when equal, 0 at chance (Hubert and Arabie), by pairs."""
    n = len(one)
    both = a = b = 0
    for i in range(n):
        for j in range(i):
            same, alike = one[i] == one[j], other[i] == other[j]
            both, a, b = both + (same and alike), a + same, b + alike
    pairs = n * (n - 1) / 2
    expected, most = a * b / pairs, (a + b) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def labels(found: Clustering, clients: dict[str, AdapterState]) -> list[int]:
    ids = [c.id for c in found.clusters]
    return [ids.index(found.cluster_of(c)) for c in sorted(clients)]


TASKS = [0, 1, 2, 3] * 4


@pytest.mark.parametrize("kind", ["cosine", "angles"])
def test_devices_are_grouped_by_their_task(kind):
    found = group(devices(TASKS), kind=kind)
    assert len(found.clusters) == 4
    assert adjusted_rand(labels(found, devices(TASKS)), TASKS) == 1.0
    assert [c.id for c in found.clusters] == ["c0", "c1", "c2", "c3"]
    assert found.silhouette > 0.2 and found.next_id == 4
    assert all(0.0 < c.cohesion <= 1.0 and len(c.members) == 4 for c in found.clusters)


@pytest.mark.parametrize("kind", ["cosine", "angles"])
def test_a_common_start_is_taken_off_before_changes_are_compared(kind):
    start = state_scaled(state(np.random.default_rng(99), 3, WIDE), 20.0)
    states = devices(TASKS, start=start)
    found = group(states, start=start, kind=kind)
    assert adjusted_rand(labels(found, states), TASKS) == 1.0
    whole, change = (
        similarity(list(states.values())),
        similarity(list(states.values()), start=start),
    )
    assert whole.min() > 0.99  # all look like the start
    assert change[0, 1] < 0.2 < 0.6 < change[0, 4]


@pytest.mark.parametrize("kind", ["cosine", "angles"])
@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("n", [3, 8, 16])
def test_one_task_is_one_group_however_well_each_device_learned_it(kind, noise, n):
    found = group(devices([0] * n, noise=noise), kind=kind)
    assert len(found.clusters) == 1 and found.silhouette == 0.0
    assert found.clusters[0].members == tuple(f"d{i:02}" for i in range(n))


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("common", [0.0, 1.0])
def test_tasks_are_found_under_noise_and_with_much_in_common(noise, common):
    shared = state_scaled(state(np.random.default_rng(5), 3, WIDE), common)
    states = {c: joined(s, shared) for c, s in devices(TASKS, noise=noise).items()}
    assert adjusted_rand(labels(group(states), states), TASKS) == 1.0


def test_one_factor_explains_one_task_and_not_two():
    how_well = np.array([0.9, 0.5, 0.7, 0.2, 0.8])
    one = np.outer(how_well, how_well)
    np.fill_diagonal(one, 1.0)
    assert beyond_one_task(one) == pytest.approx(0.0, abs=1e-6)
    two = np.kron(np.eye(2), np.full((3, 3), 0.8))
    assert beyond_one_task(two) > 0.5
    assert beyond_one_task(np.eye(4)) == 0.0 == beyond_one_task(np.ones((2, 2)))


def test_few_devices_are_grouped_as_well_as_can_be():
    assert [c.members for c in group(devices([0])).clusters] == [("d00",)]
    assert len(group(devices([0, 0])).clusters) == 1
    assert len(group(devices([0, 1])).clusters) == 2
    assert [c.members for c in group(devices([0, 1, 0])).clusters] == [("d00", "d02"), ("d01",)]


def test_a_given_number_of_groups_is_what_comes_out():
    for k in (1, 2, 5, 16):
        assert len(group(devices(TASKS), n_clusters=k).clusters) == k
    for k in (0, 17):
        with pytest.raises(BadConfig, match=f"16 clients cannot form {k} clusters"):
            group(devices(TASKS), n_clusters=k)


def test_the_grouping_does_not_depend_on_who_answered_first():
    states = devices(TASKS)
    turned = dict(reversed(list(states.items())))
    assert group(turned) == group(states)


def test_values_that_are_not_finite_are_not_grouped():
    similar_NN = np.eye(3)
    similar_NN[0, 1] = similar_NN[1, 0] = similar_NN[1, 1] = np.nan
    with pytest.raises(BadRound, match="the update of 'b' holds values that are not finite"):
        group_similar(["a", "b", "c"], similar_NN)


def test_nothing_to_group_is_said():
    with pytest.raises(BadRound, match="nothing to group"):
        group({})
    with pytest.raises(BadConfig, match="no similarity of updates named 'euclid'; known: cosine"):
        group(devices([0, 1]), kind="euclid")
    with pytest.raises(BadConfig, match="temperature of memberships must be above 0"):
        group(devices([0, 1]), temperature=0.0)


def test_raw_factors_would_mislead_and_are_not_looked_at():
    """All devices share A; tasks differ in B alone, and one device turned its basis."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((3, 40)).astype(np.float32)
    heads = [rng.standard_normal((30, 3)).astype(np.float32) for _ in range(2)]
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0].astype(np.float32)
    states = {}
    for i in range(8):
        b = heads[i % 2] + 0.2 * rng.standard_normal((30, 3)).astype(np.float32)
        basis = turn if i < 4 else np.eye(3, dtype=np.float32)
        states[f"d{i}"] = AdapterState(
            base_digest="b", modules={"m": Factors(a_RI=basis @ a, b_OR=b @ basis.T)}
        )
    found = group(states)
    assert adjusted_rand(labels(found, states), [0, 1] * 4) == 1.0


def test_similarity_by_cosine_is_the_dense_one():
    states = list(devices([0, 1, 0, 2]).values())
    rows = np.stack([flat_state(s) for s in states])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(similarity(states), rows @ rows.T, atol=1e-6)


def test_similarity_by_angles_is_blind_to_sign_and_scale():
    one, other = list(devices([0, 1]).values())
    found = similarity([one, other, state_scaled(one, -3.0), one], kind="angles")
    np.testing.assert_allclose(found, found.T)
    assert found[0, 2] == pytest.approx(1.0, abs=1e-5) == found[0, 3]
    each = []
    for name in WIDE:
        columns, rows = principal_angles(one.modules[name], other.modules[name])
        each.append(np.sqrt(np.mean(np.cos(columns) ** 2) * np.mean(np.cos(rows) ** 2)))
    assert found[0, 1] == pytest.approx(np.mean(each), abs=1e-6)
    nothing = similarity([one, state_scaled(one, 0.0)], kind="angles")
    np.testing.assert_allclose(nothing, np.eye(2))


def brute_silhouette(distances: np.ndarray, groups: list[int]) -> float:
    widths = []
    for i, mine in enumerate(groups):
        own = [distances[i, j] for j, g in enumerate(groups) if g == mine and j != i]
        others = [
            np.mean([distances[i, j] for j, g in enumerate(groups) if g == other])
            for other in set(groups) - {mine}
        ]
        if not own or not others:
            widths.append(0.0)
            continue
        a, b = float(np.mean(own)), float(min(others))
        widths.append((b - a) / max(a, b) if max(a, b) > 0 else 0.0)
    return float(np.mean(widths))


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=12), seed=st.integers(0, 9999))
def test_the_silhouette_is_the_brute_force_one(groups, seed):
    points = np.random.default_rng(seed).integers(0, 3, (len(groups), 2)).astype(float)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = silhouette(distances, np.array(groups))
    assert found == pytest.approx(brute_silhouette(distances, groups), abs=1e-9)


def test_memberships_are_soft_and_sum_to_one():
    states = devices([0, 0, 0, 1, 1, 1])
    between = joined(states["d00"], states["d03"])
    found = group(states | {"mid": between}, n_clusters=2)
    for shares in found.memberships.values():
        assert sum(shares.values()) == pytest.approx(1.0)
    own = found.cluster_of("d01")
    assert found.memberships["d01"][own] > 0.9
    assert max(found.memberships["mid"].values()) < found.memberships["d01"][own]
    cold = group(states | {"mid": between}, n_clusters=2, temperature=0.001)
    assert max(cold.memberships["d01"].values()) > 0.999


class TestIds:
    def test_ids_stay_with_their_members_whatever_the_order_of_labels(self):
        first = group(devices(TASKS))
        again = group(devices(TASKS, seed=1), previous=first)
        assert [(c.id, c.members) for c in again.clusters] == [
            (c.id, c.members) for c in first.clusters
        ]
        labels_ = np.array([1, 1, 0, 0])
        old, _ = stable_ids(["a", "b", "c", "d"], labels_, None)
        assert old == ["c1", "c0"]  # "a" is first by name

    def test_a_split_keeps_the_larger_part_and_a_new_task_gets_a_new_id(self):
        first = group(devices([0, 0, 0, 0, 1, 1]))
        later = group(devices([0, 0, 0, 2, 1, 1]), previous=first)
        assert later.cluster_of("d00") == first.cluster_of("d00") == "c0"
        assert later.cluster_of("d03") == "c2"
        assert later.cluster_of("d04") == first.cluster_of("d04")

    def test_an_id_is_never_used_again(self):
        first = group(devices([0, 0, 1, 1]))
        second = group(devices([0, 0, 0, 0]), previous=first)
        third = group(devices([0, 0, 2, 2], seed=2), previous=second)
        assert {c.id for c in second.clusters} == {"c0"}
        assert {c.id for c in third.clusters} == {"c0", "c2"}

    def test_those_who_are_absent_keep_their_cluster(self):
        states = devices(TASKS)
        first = group(states)
        some = {k: states[k] for k in sorted(states)[:5]}
        second = group(some, previous=first, n_clusters=4)
        assert second.cluster_of("d15") == first.cluster_of("d15")
        assert second.cluster_of("nobody") == ""
        third = group({k: states[k] for k in sorted(states)[8:]}, previous=second)
        for client in states:
            assert third.cluster_of(client) == first.cluster_of(client)

    def test_a_round_of_strangers_takes_the_ids_of_the_adapters_they_are_like(self):
        first_states = devices([0, 0, 1, 1, 2, 2])
        first = group(first_states)
        published = {c.id: first_states[c.members[0]] for c in first.clusters}
        strangers = {f"n{k}": v for k, v in devices([2, 2, 3, 3, 0, 0], seed=5).items()}
        found = group(strangers, previous=first, published=published)
        assert found.cluster_of("nd00") == first.cluster_of("d04")
        assert found.cluster_of("nd04") == first.cluster_of("d00")
        assert found.cluster_of("nd02") == "c3"

    def test_a_grouping_can_be_written_down_and_read_again(self):
        first = group(devices([0, 0, 1, 1]))
        again = Clustering.from_json(json.loads(json.dumps(first.as_json())))
        assert again == first and again.cluster_of("d03") == first.cluster_of("d03")


def test_a_new_device_is_matched_by_its_update_alone():
    start = state_scaled(state(np.random.default_rng(99), 3, WIDE), 20.0)
    known = devices([0, 1, 2], start=start)
    published = {"c0": known["d00"], "c1": known["d01"], "c2": known["d02"]}
    new = devices([1], start=start, seed=7)["d00"]
    found = match(new, published, start=start)
    assert found.cluster == "c1" and found.similarities.keys() == published.keys()
    assert found.similarity == found.similarities["c1"] > 0.5 > found.similarities["c0"]
    with pytest.raises(BadRound, match="no clusters yet"):
        match(new, {})


class TestSketches:
    shapes: ClassVar = {f"m{i}": (24, 32) for i in range(40)}

    def test_cosines_are_kept(self):
        rng = np.random.default_rng(0)
        common, start = state(rng, 2, self.shapes), state_scaled(state(rng, 3, self.shapes), 5.0)
        own = [state(rng, 2 + i % 2, self.shapes) for i in range(6)]
        states = [joined(start, common, one) for one in own[:4]] + [
            joined(start, one) for one in own[4:]
        ]
        sketcher = Sketcher()
        found = sketch_similarity([sketcher.of(s) for s in states], sketcher.of(start))
        np.testing.assert_allclose(found, similarity(states, start=start), atol=0.1)

    def test_a_sketch_is_linear_and_blind_to_the_basis(self):
        rng = np.random.default_rng(1)
        one, other = state(rng, 2, self.shapes), state(rng, 3, self.shapes)
        sketcher = Sketcher(side=4)
        both = sketcher.of(one) + sketcher.of(other)
        np.testing.assert_allclose(sketcher.of(joined(one, other)), both, atol=1e-4)
        assert len(both) == 40 * 16
        assert np.array_equal(Sketcher(side=4).of(one), sketcher.of(one))
        assert not np.allclose(Sketcher(side=4, seed=1).of(one), sketcher.of(one))

    def test_groups_from_sketches_are_those_from_adapters(self):
        states = devices(TASKS)
        sketcher = Sketcher(side=24)
        names = sorted(states)
        similar = sketch_similarity([sketcher.of(states[c]) for c in names])
        found = group_similar(names, similar)
        assert adjusted_rand(labels(found, states), TASKS) == 1.0


def test_products_and_not_scales_decide():
    """A device that trains ten times longer has a larger change of the same task."""
    states = devices([0, 0, 0, 1, 1, 1])
    states["d00"] = state_scaled(states["d00"], 10.0)
    assert np.linalg.norm(product(states["d00"].modules["q"])) > 50
    found = group(states)
    assert adjusted_rand(labels(found, states), [0, 0, 0, 1, 1, 1]) == 1.0


@pytest.mark.parametrize("module", ["scipy.cluster", "scipy.optimize"])
def test_without_scipy_it_says_what_to_install(monkeypatch, module):
    first = group(devices([0, 0, 1, 1]))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Missing, match=r'needs scipy: pip install "floe\[fed\]"'):
        group(devices([0, 0, 1, 1]), previous=first)
