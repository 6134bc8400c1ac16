from __future__ import annotations

import numpy as np
import pytest
from array_cases import SHAPES, flat_state, gap, product, state, update

from floe.core.errors import BadRound
from floe.federated.aggregate.choose import make_aggregator
from floe.federated.aggregate.coordinate_median import CoordinateMedian
from floe.federated.aggregate.kept import Kept
from floe.federated.aggregate.multi_krum import MultiKrum
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.aggregate.trimmed_mean import TrimmedMean
from floe.federated.grams import change_gram, cosines, gram, squared_distances
from floe.federated.products import state_difference, state_scaled
from floe.federated.robust import diagnose, multi_krum
from floe.federated.update import AdapterState, Factors

ROBUST = ("trimmed-mean", "coordinate-median", "multi-krum")


def learned(rng: np.random.Generator, common: AdapterState, spread: float = 0.6) -> AdapterState:
    """What an honest device learns: the common change and something of its own."""
    own = state(rng, 2)
    return AdapterState(
        base_digest="base",
        modules={
            n: Factors(
                a_RI=np.concatenate([f.a_RI, own.modules[n].a_RI]),
                b_OR=np.concatenate([f.b_OR, spread * own.modules[n].b_OR], axis=1),
            )
            for n, f in common.modules.items()
        },
    )


def a_round(n: int, seed: int = 0) -> tuple[AdapterState, list[AdapterState]]:
    rng = np.random.default_rng(seed)
    common = state(rng, 2)
    return common, [learned(rng, common) for _ in range(n)]


def run(total: Kept, states: list[AdapterState], rank: int = 99):
    for i, one in enumerate(states):
        total.add(update(one, f"d{i:02}"), weight=1.0)
    return total.close(rank=rank)


def test_grams_are_inner_products_of_dense_products():
    rng = np.random.default_rng(1)
    states = [state(rng, r) for r in (1, 3, 5, 2)]
    few = AdapterState(base_digest="base", modules={"k": states[0].modules["k"]})
    rows = np.stack([flat_state(s) for s in states])
    np.testing.assert_allclose(gram(states), rows @ rows.T, rtol=1e-5, atol=1e-4)
    assert gram([states[1], few])[0, 1] == pytest.approx(
        float(np.vdot(product(states[1].modules["k"]), product(few.modules["k"]))), rel=1e-5
    )
    start = state(rng, 3)
    moved = np.stack([flat_state(state_difference(s, start)) for s in states])
    np.testing.assert_allclose(change_gram(states, start), moved @ moved.T, rtol=1e-5, atol=1e-3)
    gaps = squared_distances(gram(states))
    assert gaps[1, 2] == pytest.approx(float(np.sum((rows[1] - rows[2]) ** 2)), rel=1e-5)
    nothing = cosines(gram([states[0], state_scaled(states[1], 0.0)]))
    np.testing.assert_allclose(nothing, np.eye(2))


def test_a_small_change_against_a_large_start_is_seen_exactly():
    rng = np.random.default_rng(2)
    start = state_scaled(state(rng, 3), 100.0)
    small = [state_scaled(state(rng, 2), 0.01) for _ in range(3)]
    states = [state_difference(start, state_scaled(s, -1.0)) for s in small]
    rows = np.stack([flat_state(s) for s in small])
    np.testing.assert_allclose(change_gram(states, start), rows @ rows.T, atol=1e-6)


@pytest.mark.parametrize("n", [5, 6])
def test_the_middle_of_each_coordinate_is_the_dense_one(n):
    _, states = a_round(n)
    dense = {m: np.stack([product(s.modules[m]) for s in states]) for m in SHAPES}
    median = run(CoordinateMedian(max_hostile=2), states)
    assert gap(median.state, {m: np.median(x, axis=0) for m, x in dense.items()}) <= 1e-5
    trimmed = run(TrimmedMean(max_hostile=1), states)
    wanted = {m: np.sort(x, axis=0)[1:-1].mean(axis=0) for m, x in dense.items()}
    assert gap(trimmed.state, wanted) <= 1e-5
    none = run(TrimmedMean(max_hostile=0), states)
    assert gap(none.state, {m: x.mean(axis=0) for m, x in dense.items()}) <= 1e-5


def test_rows_at_a_time_give_the_same(monkeypatch):
    _, states = a_round(5)
    whole = run(CoordinateMedian(), states).state
    monkeypatch.setattr("floe.federated.robust._DENSE_BYTES", 1)
    again = flat_state(run(CoordinateMedian(), states).state)
    np.testing.assert_allclose(again, flat_state(whole), atol=1e-5)


def test_multi_krum_is_the_brute_force_choice():
    rng = np.random.default_rng(3)
    for n, f in ((5, 1), (8, 2), (9, 3), (12, 2)):
        rows = rng.standard_normal((n, 30))
        scores = []
        for i in range(n):
            gaps = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(n) if j != i)
            scores.append(sum(gaps[: n - f - 2]))
        wanted = tuple(sorted(np.argsort(scores)[: n - f].tolist()))
        assert multi_krum(rows @ rows.T, max_hostile=f) == wanted
    assert multi_krum(np.eye(4), max_hostile=0) == (0, 1, 2, 3)
    with pytest.raises(
        BadRound, match="multi-Krum bears 2 hostile updates among 7 or more; only 6"
    ):
        multi_krum(np.eye(6), max_hostile=2)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("attack", ["flipped", "huge", "noise"])
def test_c07_a_fifth_of_hostile_devices_moves_a_robust_mean_little(name, attack):
    common, states = a_round(10)
    rng = np.random.default_rng(5)
    forged = {
        "flipped": lambda s: state_scaled(s, -1.0),
        "huge": lambda s: state_scaled(s, 1e6),
        "noise": lambda s: state_scaled(state(rng, 4), 2.0),
    }[attack]
    honest = flat_state(run_mean(states[2:]))
    hostile = [forged(states[0]), forged(states[1]), *states[2:]]
    total = make_aggregator(name, max_hostile=2)
    found = flat_state(run(total, hostile).state)
    plain = flat_state(run_mean(hostile))
    size = np.linalg.norm(flat_state(common))
    assert np.linalg.norm(found - honest) < 0.5 * size
    assert np.linalg.norm(found - honest) < np.linalg.norm(plain - honest)
    if attack != "noise":
        assert set(total.diagnosis.hostile) == {"d00", "d01"}


def run_mean(states: list[AdapterState]) -> AdapterState:
    total = ProductMean()
    for one in states:
        total.add(update(one), weight=1.0)
    return total.close(rank=99).state


@pytest.mark.parametrize("name", ROBUST)
def test_c08_more_hostile_ones_than_the_bound_stop_the_round(name):
    _, states = a_round(7)
    three = [*(state_scaled(s, -1.0) for s in states[:3]), *states[3:]]
    total = make_aggregator(name, max_hostile=2)
    with pytest.raises(
        BadRound, match="3 of 7 updates look hostile, the bound is 2: d00, d01, d02"
    ):
        run(total, three)
    assert total.diagnosis.hostile == ("d00", "d01", "d02")
    assert len(total.diagnosis.norms) == len(total.diagnosis.alignments) == 7


@pytest.mark.parametrize("name", ROBUST)
def test_c08_hostility_is_judged_by_the_change_and_not_by_the_common_start(name):
    _, changes = a_round(7)
    start = state_scaled(state(np.random.default_rng(6), 3), 30.0)
    flipped = [*(state_scaled(s, -1.0) for s in changes[:3]), *changes[3:]]
    states = [state_difference(start, state_scaled(c, -1.0)) for c in flipped]
    blind = make_aggregator(name, max_hostile=2)
    run(blind, states)
    assert blind.diagnosis.hostile == ()
    with pytest.raises(BadRound, match="3 of 7 updates look hostile"):
        run(make_aggregator(name, max_hostile=2, start=start), states)


@pytest.mark.parametrize("seed", range(6))
def test_honest_devices_of_unlike_ranks_and_sizes_look_honest(seed):
    rng = np.random.default_rng(seed)
    common = state(rng, 2)
    states = [
        state_scaled(learned(rng, common, 1.0), float(rng.uniform(0.5, 1.8))) for _ in range(9)
    ]
    assert diagnose([str(i) for i in range(9)], gram(states)).hostile == ()


def test_devices_with_nothing_in_common_do_not_look_hostile_to_each_other():
    rng = np.random.default_rng(8)
    wide = {"m": (60, 80)}
    states = [state(rng, 3, wide) for _ in range(8)]
    assert diagnose([str(i) for i in range(8)], gram(states)).hostile == ()
    assert diagnose(["one"], gram(states[:1])).hostile == ()


def test_too_few_updates_for_the_bound_are_no_round():
    _, states = a_round(4)
    with pytest.raises(BadRound, match="4 updates cannot bear 2 hostile ones"):
        run(TrimmedMean(max_hostile=2), states)


def test_the_bound_is_a_fifth_unless_given():
    _, states = a_round(10)
    three = [*(state_scaled(s, -1.0) for s in states[:3]), *states[3:]]
    with pytest.raises(BadRound, match="3 of 10 updates look hostile, the bound is 2"):
        run(MultiKrum(), three)
    done = run(MultiKrum(), [*(state_scaled(s, -1.0) for s in states[:2]), *states[2:]])
    assert (done.n_updates, done.n_examples) == (8, 40)
