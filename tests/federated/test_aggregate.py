"""The list every aggregator passes, and what each of them is beside its dense twin."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import (
    SHAPES,
    best_cut,
    dense_mean,
    factors,
    flat,
    flat_state,
    gap,
    product,
    state,
    update,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRound, BadUpdate
from floe.federated import wire
from floe.federated.aggregate.alternating import Alternating, half_of
from floe.federated.aggregate.choose import AGGREGATORS, DEFAULT, make_aggregator
from floe.federated.aggregate.factor_mean import FactorMean
from floe.federated.aggregate.layout import all_finite
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.aggregate.rank_partition import RankPartition
from floe.federated.aggregate.zero_padded import ZeroPadded
from floe.federated.base import Aggregator
from floe.federated.update import AdapterState, Factors

SHARED = ("frozen-a", "alternating")
EXACT = ("product-mean", "stacked")


def alike(n: int, rank: int = 3, seed: int = 0) -> list[AdapterState]:
    """Adapters that any aggregator takes: one rank, one A, B around a common one."""
    rng = np.random.default_rng(seed)
    first = state(rng, rank)
    out = []
    for _ in range(n):
        modules = {
            name: Factors(
                a_RI=f.a_RI,
                b_OR=f.b_OR + 0.3 * rng.standard_normal(f.b_OR.shape).astype(np.float32),
            )
            for name, f in first.modules.items()
        }
        out.append(AdapterState(base_digest="base", modules=modules))
    return out


def closed(total: Aggregator, states: list[AdapterState], weights: list[float], rank: int = 99):
    for i, (one, weight) in enumerate(zip(states, weights, strict=True)):
        total.add(update(one, f"d{i:02}"), weight=weight)
    return total.close(rank=rank)


@pytest.mark.parametrize("name", AGGREGATORS)
class TestEveryAggregator:
    def test_carries_its_name_and_comes_fresh(self, name):
        total = make_aggregator(name)
        assert total.name == name
        assert make_aggregator(name) is not total

    def test_one_update_is_its_own_mean(self, name):
        (one,) = alike(1)
        done = closed(make_aggregator(name), [one], [0.7])
        np.testing.assert_allclose(flat_state(done.state), flat_state(one), atol=1e-5)
        assert (done.n_updates, done.n_examples) == (1, 5)
        assert done.truncation_error == pytest.approx(0.0, abs=1e-6)
        assert done.compression_error == 0.0

    def test_equal_updates_are_their_own_mean(self, name):
        (one,) = alike(1)
        done = closed(make_aggregator(name), [one] * 7, [1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0])
        np.testing.assert_allclose(flat_state(done.state), flat_state(one), atol=1e-5)
        assert done.state.base_digest == "base"

    def test_equal_weights_may_be_of_any_size(self, name):
        states = alike(7)
        small = closed(make_aggregator(name), states, [1e-3] * 7)
        large = closed(make_aggregator(name), states, [1e3] * 7)
        np.testing.assert_allclose(flat_state(small.state), flat_state(large.state), atol=1e-4)

    def test_the_order_of_updates_does_not_matter(self, name):
        states = alike(7)
        one, other = make_aggregator(name), make_aggregator(name)
        for i in range(7):
            one.add(update(states[i], f"d{i}"), weight=1.0 + i)
        for i in reversed(range(7)):
            other.add(update(states[i], f"d{i}"), weight=1.0 + i)
        np.testing.assert_allclose(
            flat_state(one.close(rank=3).state), flat_state(other.close(rank=3).state), atol=1e-4
        )

    def test_a_cut_keeps_shapes_and_says_what_it_lost(self, name):
        states = alike(7)
        whole = closed(make_aggregator(name), states, [1.0] * 7)
        low = closed(make_aggregator(name), states, [1.0] * 7, rank=2)
        assert {n: f.shape for n, f in low.state.modules.items()} == SHAPES
        assert {f.rank for f in low.state.modules.values()} == {2}
        target = flat_state(whole.state)
        lost = np.linalg.norm(flat_state(low.state) - target) / np.linalg.norm(target)
        assert low.truncation_error == pytest.approx(lost, abs=1e-3) and lost > 0.01

    def test_what_was_decoded_counts_like_what_was_built(self, name):
        states = alike(7)
        plain = closed(make_aggregator(name), states, [1.0] * 7)
        sent = [wire.decode(wire.encode(update(s))).state for s in states]
        mixed = closed(make_aggregator(name), [*sent[:3], states[3], *sent[4:]], [1.0] * 7)
        np.testing.assert_allclose(flat_state(mixed.state), flat_state(plain.state), atol=1e-5)

    def test_what_was_taken_in_is_not_changed_and_not_held_by_the_result(self, name):
        states = alike(7)
        before = [flat_state(s) for s in states]
        done = closed(make_aggregator(name), states, [2.0] * 7)
        for module in done.state.modules.values():
            module.a_RI[...] = 0.0
            module.b_OR[...] = 0.0
        for one, was in zip(states, before, strict=True):
            np.testing.assert_array_equal(flat_state(one), was)

    def test_nothing_added_is_no_round(self, name):
        with pytest.raises(BadRound, match="no update was taken in"):
            make_aggregator(name).close(rank=4)

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e300])
    def test_c01_a_weight_that_is_none_is_refused(self, name, weight):
        total = make_aggregator(name)
        with pytest.raises(BadUpdate, match="weight must be finite and above 0") as refused:
            total.add(update(alike(1)[0]), weight=weight)
        assert refused.value.reason == "weight"
        with pytest.raises(BadRound):
            total.close(rank=4)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("decoded", [False, True])
    def test_c05_a_value_that_is_none_is_refused_and_the_rest_goes_on(self, name, bad, decoded):
        good, broken = alike(2)
        broken.modules["k"].b_OR[3, 1] = bad
        sent = wire.decode(wire.encode(update(broken, "evil"))) if decoded else update(broken)
        alone = closed(make_aggregator(name), [good], [1.0])
        total = make_aggregator(name)
        total.add(update(good), weight=1.0)
        with pytest.raises(BadUpdate, match=r"module 'k': a value is NaN or infinite") as refused:
            total.add(sent, weight=1.0)
        assert refused.value.reason == "not_finite"
        after = total.close(rank=99)
        assert after.n_updates == 1
        np.testing.assert_array_equal(flat_state(after.state), flat_state(alone.state))

    def test_c04_another_set_of_modules_or_shapes_or_base_is_refused(self, name):
        one, other = alike(2)
        few = AdapterState(base_digest="base", modules={"q": other.modules["q"]})
        none = AdapterState(base_digest="base", modules={})
        far = AdapterState(base_digest="other", modules=other.modules)
        rng = np.random.default_rng(0)
        turned = AdapterState(
            base_digest="base", modules=one.modules | {"k": factors(rng, (6, 10), 3)}
        )
        torn = Factors(a_RI=one.modules["k"].a_RI[:2], b_OR=one.modules["k"].b_OR)
        halves = AdapterState(base_digest="base", modules=one.modules | {"k": torn})
        total = make_aggregator(name)
        total.add(update(one), weight=1.0)
        for wrong, reason, text in (
            (few, "modules", "changes other modules"),
            (none, "empty", "no factors"),
            (far, "base", "trained on base 'other'"),
            (turned, "shape", r"the layer is \(10, 6\)"),
            (halves, "shape", "do not multiply"),
        ):
            with pytest.raises(BadUpdate, match=text) as refused:
                total.add(update(wrong, "evil"), weight=1.0)
            assert refused.value.reason == reason
        assert total.close(rank=99).n_updates == 1


ranks = st.lists(st.integers(1, 7), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(ranks=ranks, seed=st.integers(0, 10_000), name=st.sampled_from(EXACT))
def test_c23_the_mean_of_unequal_ranks_is_the_dense_one(ranks, seed, name):
    rng = np.random.default_rng(seed)
    states = [state(rng, r) for r in ranks]
    weights = [float(w) for w in rng.uniform(0.1, 9.0, len(ranks))]
    wanted = dense_mean(states, weights)
    whole = closed(make_aggregator(name), states, weights)
    assert gap(whole.state, wanted) <= 1e-5
    low = closed(make_aggregator(name), states, weights, rank=2)
    best = {n: best_cut(m, 2) for n, m in wanted.items()}
    target = flat(wanted)
    least = np.linalg.norm(flat(best) - target) / np.linalg.norm(target)
    assert low.truncation_error == pytest.approx(least, abs=1e-5)
    assert gap(low.state, wanted) == pytest.approx(least, abs=1e-5)


def test_many_updates_stay_exact_when_the_sum_turns_dense():
    rng = np.random.default_rng(7)
    shapes = {"wide": (30, 50), "tall": (50, 30)}
    states = [state(rng, (4, 8, 16, 32)[i % 4], shapes) for i in range(40)]
    weights = [1.0 + i % 3 for i in range(40)]
    done = closed(ProductMean(), states, weights)
    assert gap(done.state, dense_mean(states, weights)) <= 1e-5
    assert done.compression_error == 0.0


def test_a_rank_above_the_layers_sides_is_taken_in():
    rng = np.random.default_rng(8)
    states = [state(rng, r, {"m": (5, 7)}) for r in (40, 2, 90)]
    done = closed(ProductMean(), states, [1.0, 2.0, 3.0])
    assert gap(done.state, dense_mean(states, [1.0, 2.0, 3.0])) <= 1e-5


def test_compressed_sums_state_a_bound_that_holds():
    rng = np.random.default_rng(9)
    shapes = {"m": (60, 50), "n": (40, 70)}
    states = [state(rng, 4, shapes) for _ in range(30)]
    weights = [1.0] * 30
    wanted = dense_mean(states, weights)
    errors = []
    for keep in (12, 24, 60):
        done = closed(ProductMean(dense_bytes=0, keep_rank=keep), states, weights, rank=200)
        error = gap(done.state, wanted) * np.linalg.norm(flat(wanted))
        assert error <= done.compression_error * np.linalg.norm(flat_state(done.state)) + 1e-5
        errors.append(done.compression_error)
    assert errors[0] > errors[1] > errors[2]
    exact = closed(ProductMean(dense_bytes=0, keep_rank=70), states, weights, rank=200)
    assert exact.compression_error <= 1e-6 and gap(exact.state, wanted) <= 1e-5


def test_c19_the_scale_is_part_of_the_product_and_of_nothing_else():
    rng = np.random.default_rng(10)
    raw = [state(rng, r) for r in (4, 8)]
    alphas = (32.0, 8.0)  # alpha / r: 8 and 1
    scaled = [
        AdapterState(
            base_digest="base",
            modules={
                n: Factors(a_RI=f.a_RI, b_OR=f.b_OR * np.float32(alpha / f.rank))
                for n, f in s.modules.items()
            },
        )
        for s, alpha in zip(raw, alphas, strict=True)
    ]
    wanted = {
        n: (8.0 * product(raw[0].modules[n]) + 1.0 * product(raw[1].modules[n])) / 2 for n in SHAPES
    }
    assert gap(closed(ProductMean(), scaled, [1.0, 1.0]).state, wanted) <= 1e-5


def test_c22_the_product_mean_beats_padding_and_the_mean_of_factors():
    rng = np.random.default_rng(11)
    states = [state(rng, r) for r in (2, 3, 5)]
    wanted = dense_mean(states, [1.0, 1.0, 1.0])
    padded = gap(closed(ZeroPadded(), states, [1.0] * 3).state, wanted)
    assert DEFAULT == "product-mean"
    assert gap(closed(make_aggregator(), states, [1.0] * 3).state, wanted) <= 1e-5 < 0.3 < padded
    same = [state(rng, 3) for _ in range(3)]
    factor = closed(FactorMean(), same, [1.0] * 3)
    assert gap(factor.state, dense_mean(same, [1.0] * 3)) > 0.3


def test_the_factor_mean_is_the_mean_of_a_and_of_b():
    rng = np.random.default_rng(12)
    states, weights = [state(rng, 3) for _ in range(4)], [1.0, 2.0, 3.0, 4.0]
    done = closed(FactorMean(), states, weights).state
    for name, found in done.modules.items():
        parts = [s.modules[name] for s in states]
        a = sum(w * f.a_RI for w, f in zip(weights, parts, strict=True)) / 10
        b = sum(w * f.b_OR for w, f in zip(weights, parts, strict=True)) / 10
        np.testing.assert_allclose(found.a_RI, a, atol=1e-5)
        np.testing.assert_allclose(found.b_OR, b, atol=1e-5)


def test_the_factor_mean_refuses_unequal_ranks():
    rng = np.random.default_rng(13)
    total = FactorMean()
    total.add(update(state(rng, 3)), weight=1.0)
    with pytest.raises(BadUpdate, match=r"rank 2 among rank 3.*use \"product-mean\"") as refused:
        total.add(update(state(rng, 2), "low"), weight=1.0)
    assert refused.value.reason == "rank"


@pytest.mark.parametrize("order", [(2, 5, 3), (5, 2, 3)])
def test_zero_padding_is_the_mean_of_padded_factors(order):
    rng = np.random.default_rng(14)
    states = [state(rng, r) for r in order]
    done = closed(ZeroPadded(), states, [1.0, 2.0, 1.0]).state
    for name, found in done.modules.items():
        a, b = np.zeros_like(found.a_RI), np.zeros_like(found.b_OR)
        for one, w in zip(states, (1.0, 2.0, 1.0), strict=True):
            f = one.modules[name]
            a[: f.rank] += w / 4 * f.a_RI
            b[:, : f.rank] += w / 4 * f.b_OR
        np.testing.assert_allclose(found.a_RI, a, atol=1e-5)
        np.testing.assert_allclose(found.b_OR, b, atol=1e-5)


def test_zero_padding_by_norm_weighs_large_changes_more():
    small, large = alike(2)
    large = AdapterState(
        base_digest="base",
        modules={n: Factors(a_RI=f.a_RI, b_OR=f.b_OR * 9) for n, f in large.modules.items()},
    )
    plain = closed(ZeroPadded(), [small, large], [1.0, 1.0]).state
    by_norm = closed(ZeroPadded(by_norm=True), [small, large], [1.0, 1.0]).state
    target = flat_state(large)
    assert np.linalg.norm(flat_state(by_norm) - target) < np.linalg.norm(flat_state(plain) - target)


def test_c17_stacking_gives_the_sum_of_ranks_or_the_best_cut():
    rng = np.random.default_rng(15)
    states = [state(rng, r, {"m": (40, 30)}) for r in (4, 8, 16)]
    whole = closed(make_aggregator("stacked"), states, [1.0, 1.0, 2.0])
    assert whole.state.rank == 28 and whole.truncation_error == 0.0
    low = closed(make_aggregator("stacked"), states, [1.0, 1.0, 2.0], rank=8)
    other = closed(ProductMean(), states, [1.0, 1.0, 2.0], rank=8)
    np.testing.assert_allclose(flat_state(low.state), flat_state(other.state), atol=1e-5)
    assert low.truncation_error == pytest.approx(other.truncation_error, abs=1e-6)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_half_makes_the_mean_exact_and_comes_back_bit_for_bit(name):
    states, weights = alike(5), [1.0, 2.0, 3.0, 4.0, 5.0]
    done = closed(make_aggregator(name, round_number=3), states, weights)
    assert gap(done.state, dense_mean(states, weights)) <= 1e-5
    for module, found in done.state.modules.items():
        assert np.array_equal(found.a_RI, states[0].modules[module].a_RI)


def test_the_other_half_step_shares_b():
    first = alike(1)[0]
    rng = np.random.default_rng(16)
    states = [
        AdapterState(
            base_digest="base",
            modules={
                n: Factors(a_RI=f.a_RI + rng.standard_normal(f.a_RI.shape, np.float32), b_OR=f.b_OR)
                for n, f in first.modules.items()
            },
        )
        for _ in range(3)
    ]
    done = closed(Alternating(round_number=2), states, [1.0, 1.0, 1.0])
    assert gap(done.state, dense_mean(states, [1.0] * 3)) <= 1e-5
    assert [half_of(n) for n in (1, 2, 3)] == ["b", "a", "b"]
    with pytest.raises(BadUpdate, match="its A is not the one this round shares") as refused:
        closed(Alternating(round_number=1), states, [1.0, 1.0, 1.0])
    assert refused.value.reason == "not_shared"


def test_rank_partitions_do_not_fade_where_only_high_ranks_reach():
    rng = np.random.default_rng(17)
    high = state(rng, 4, {"m": (12, 9)})
    lows = [
        AdapterState(
            base_digest="base",
            modules={"m": _rank_two(high.modules["m"])},
        )
        for _ in range(5)
    ]
    states, weights = [high, *lows], [1.0] * 6
    done = closed(RankPartition(ranks=(2, 4)), states, weights)
    np.testing.assert_allclose(flat_state(done.state), flat_state(high), atol=1e-4)
    plain = closed(ProductMean(), states, weights)
    tail = product(high.modules["m"]) - best_cut(product(high.modules["m"]), 2)
    kept = np.vdot(product(plain.state.modules["m"]), tail) / np.vdot(tail, tail)
    assert kept == pytest.approx(1 / 6, abs=1e-4)


def _rank_two(one: Factors) -> Factors:
    u, s, vt = np.linalg.svd(product(one), full_matrices=False)
    return Factors(a_RI=(s[:2, None] * vt[:2]).astype(np.float32), b_OR=u[:, :2].astype(np.float32))


def test_c20_one_name_chooses_and_a_wrong_one_gets_a_hint():
    with pytest.raises(BadConfig, match=r'no aggregator named .*did you mean "product-mean"\?'):
        make_aggregator("product_mean")
    with pytest.raises(BadConfig, match="known: product-mean, factor-mean"):
        make_aggregator("xyz")
    with pytest.raises(BadConfig, match="max_hostile must be 0 or more, not -1"):
        make_aggregator("multi-krum", max_hostile=-1)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_modules_may_come_in_any_order(name):
    states = alike(7)
    turned = [
        AdapterState(base_digest="base", modules=dict(reversed(s.modules.items()))) if i % 2 else s
        for i, s in enumerate(states)
    ]
    sent = [wire.decode(wire.encode(update(s))).state for s in turned]
    wanted = flat_state(closed(make_aggregator(name), states, [1.0] * 7).state)
    for other in (turned, sent):
        found = flat_state(closed(make_aggregator(name), other, [1.0] * 7).state)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_large_numbers_are_numbers():
    (one,) = alike(1)
    one.modules["k"].b_OR[0, 0] = 1e30  # its square overflows float32
    assert all_finite(one) and all_finite(wire.decode(wire.encode(update(one))).state)
