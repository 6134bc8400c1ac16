from __future__ import annotations

import numpy as np
import pytest
from array_cases import best_cut, factors, flat_state, product, state
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.federated import products
from floe.federated.update import AdapterState, Factors

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
ranks = st.integers(1, 12)  # above the sides of a layer too
seeds = st.integers(0, 10_000)
quick = settings(max_examples=40, deadline=None)


@quick
@given(shape=shapes, first=ranks, second=ranks, seed=seeds)
def test_the_sum_of_unequal_ranks_is_that_of_dense_products(shape, first, second, seed):
    rng = np.random.default_rng(seed)
    one, other = factors(rng, shape, first), factors(rng, shape, second)
    both = products.weighted_sum([one, other], [0.25, 3.0])
    wanted = 0.25 * product(one) + 3.0 * product(other)
    assert both.rank == first + second
    np.testing.assert_allclose(product(both), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        product(products.difference(one, other)), product(one) - product(other), atol=1e-5
    )
    np.testing.assert_allclose(product(products.scaled(one, -2.0)), -2 * product(one), rtol=1e-6)


def test_changes_of_different_layers_are_not_added():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"layers \(3, 4\) and \(4, 3\) cannot be added"):
        products.weighted_sum([factors(rng, (3, 4), 1), factors(rng, (4, 3), 1)], [1.0, 1.0])


@quick
@given(shape=shapes, rank=ranks, to=ranks, seed=seeds)
def test_c23_the_cut_is_the_best_there_is_and_not_its_transpose(shape, rank, to, seed):
    one = factors(np.random.default_rng(seed), shape, rank)
    whole = product(one)
    done = products.cut(one, to)
    wanted = best_cut(whole, to)
    assert done.factors.shape == shape and done.factors.rank == min(to, rank, *shape)
    size = np.linalg.norm(whole)
    np.testing.assert_allclose(
        np.linalg.norm(whole - product(done.factors)), np.linalg.norm(whole - wanted),
        atol=2e-6 * size,
    )  # fmt: skip
    np.testing.assert_allclose(done.error, np.linalg.norm(whole - wanted), atol=1e-6 * size)
    np.testing.assert_allclose(done.norm, size, rtol=1e-6)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (160, 200), (200, 160)])
@pytest.mark.parametrize("rank", [1, 5, 9, 12, 300])
@pytest.mark.parametrize("kind", ["flat", "falling", "low rank", "nothing"])
def test_the_cut_of_a_dense_matrix_comes_within_1e_4_of_the_least_error(shape, rank, kind):
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal(shape)
    if kind == "falling":
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
        matrix = (u * s / (1 + np.arange(len(s))) ** 2) @ vt
    elif kind == "low rank":
        matrix = matrix[:, :4] @ rng.standard_normal((4, shape[1]))
    elif kind == "nothing":
        matrix = np.zeros(shape)
    matrix = matrix.astype(np.float32)
    done = products.cut_dense(matrix, rank)
    size = float(np.linalg.norm(matrix.astype(np.float64)))
    least = float(np.linalg.norm(np.linalg.svd(matrix.astype(np.float64))[1][rank:]))
    real = float(np.linalg.norm(matrix - product(done.factors)))
    assert done.factors.rank == min(rank, *shape)
    assert real <= least * (1 + 1e-4) + 1e-6 * size
    assert done.error == pytest.approx(real, abs=1e-6 * size + 1e-12)
    assert done.norm == pytest.approx(size, rel=1e-6)
    again = products.cut_dense(matrix, rank).factors
    assert np.array_equal(again.a_RI, done.factors.a_RI)  # the same every time


@quick
@given(shape=shapes, first=ranks, second=ranks, seed=seeds)
def test_norm_inner_and_cosine_are_those_of_the_products(shape, first, second, seed):
    rng = np.random.default_rng(seed)
    one, other = factors(rng, shape, first), factors(rng, shape, second)
    x, y = product(one).ravel(), product(other).ravel()
    size = np.linalg.norm(x) * np.linalg.norm(y)
    assert products.norm(one) == pytest.approx(np.linalg.norm(x), rel=1e-6)
    assert products.inner(one, other) == pytest.approx(x @ y, abs=1e-6 * size)
    assert products.cosine(one, other) == pytest.approx(x @ y / size, abs=1e-6)


def test_no_measure_depends_on_the_basis_of_the_factors():
    rng = np.random.default_rng(1)
    one, other = factors(rng, (7, 5), 3), factors(rng, (7, 5), 2)
    turn = rng.standard_normal((3, 3)) + 2 * np.eye(3)
    turned = Factors(
        a_RI=(np.linalg.inv(turn) @ one.a_RI).astype(np.float32),
        b_OR=(one.b_OR @ turn).astype(np.float32),
    )
    assert products.cosine(turned, other) == pytest.approx(products.cosine(one, other), abs=1e-5)
    assert products.norm(turned) == pytest.approx(products.norm(one), rel=1e-5)
    for found, wanted in zip(
        products.principal_angles(turned, other),
        products.principal_angles(one, other),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_principal_angles_are_those_between_the_spaces():
    axes = np.eye(4, dtype=np.float32)
    angle = 0.3
    tilted = np.cos(angle) * axes[0] + np.sin(angle) * axes[2]
    one = Factors(a_RI=axes[:1], b_OR=axes[:, :2][:, :1])
    other = Factors(a_RI=tilted[None, :].astype(np.float32), b_OR=axes[:, 3:])
    columns, rows = products.principal_angles(one, other)
    np.testing.assert_allclose(columns, [np.pi / 2], atol=1e-6)
    np.testing.assert_allclose(rows, [angle], atol=1e-6)
    nothing = products.scaled(one, 0.0)
    assert [len(x) for x in products.principal_angles(nothing, other)] == [0, 0]
    assert products.cosine(nothing, other) == 0.0


def test_c17_an_adapter_comes_to_a_devices_rank_and_says_what_that_lost():
    adapter = state(np.random.default_rng(2), 6)
    low, lost = products.state_at_rank(adapter, 3, seed=1)
    wanted = np.concatenate(
        [best_cut(product(f), 3).ravel() for _, f in sorted(adapter.modules.items())]
    )
    whole = flat_state(adapter)
    assert {f.rank for f in low.modules.values()} == {3}
    assert lost == pytest.approx(np.linalg.norm(whole - wanted) / np.linalg.norm(whole), rel=1e-5)
    high, none = products.state_at_rank(adapter, 9, seed=1)
    assert none == 0.0 and {f.rank for f in high.modules.values()} == {9}
    np.testing.assert_allclose(flat_state(high), whole, atol=1e-6)
    fresh = high.modules["q"]
    assert np.any(fresh.a_RI[6:] != 0.0) and not np.any(fresh.b_OR[:, 6:])
    again, _ = products.state_at_rank(adapter, 9, seed=1)
    assert np.array_equal(again.modules["q"].a_RI, fresh.a_RI)


def test_adapters_are_compared_as_one_long_vector():
    rng = np.random.default_rng(4)
    one, other = state(rng, 2), state(rng, 3)
    x, y = flat_state(one), flat_state(other)
    assert products.state_norm(one) == pytest.approx(np.linalg.norm(x), rel=1e-6)
    assert products.state_inner(one, other) == pytest.approx(x @ y, rel=1e-4)
    assert products.state_cosine(one, other) == pytest.approx(
        x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6
    )
    np.testing.assert_allclose(flat_state(products.state_difference(one, other)), x - y, atol=1e-5)
    assert products.state_difference(one, None) is one
    assert products.relative_error(one, products.state_scaled(one, 2.0)) == pytest.approx(0.5)
    nothing = products.state_scaled(one, 0.0)
    assert products.state_cosine(one, nothing) == 0.0
    assert products.relative_error(one, nothing) == pytest.approx(np.linalg.norm(x), rel=1e-6)


def test_a_module_that_one_adapter_lacks_counts_as_nothing():
    rng = np.random.default_rng(5)
    one, other = state(rng, 2), state(rng, 2)
    less = AdapterState(base_digest="base", modules={"q": other.modules["q"]})
    gone = products.state_difference(less, one)
    np.testing.assert_allclose(product(gone.modules["k"]), -product(one.modules["k"]), atol=1e-6)
    assert products.state_inner(one, less) == pytest.approx(
        products.inner(one.modules["q"], less.modules["q"])
    )
