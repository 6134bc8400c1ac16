"""What goes into a secure sum, what comes out, and masks that nobody can guess."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federated.learning_stand_ins import BASE, SHAPES, a_state

from floe.core.errors import BadConfig, BadRound, BadUpdate
from floe.federated.secure_sum import SecureTerms, change_vector, moved
from floe.federated.shields.masks import masks
from floe.federated.shields.secagg import FixedPoint
from floe.federated.start import fresh_state, on_shared_a, with_rest
from floe.federated.update import AdapterState, Factors

TERMS = SecureTerms(rank=4, a_seed=5, least=3, fixed=FixedPoint(clipping_range=4.0))


def over_a(seed: int, *, rank: int = 4, scale: float = 0.3) -> AdapterState:
    rng = np.random.default_rng(seed)
    fresh = fresh_state(BASE, SHAPES, rank=rank, seed=TERMS.a_seed)
    return AdapterState(
        base_digest=BASE,
        modules={
            n: Factors(a_RI=f.a_RI, b_OR=(scale * rng.normal(size=f.b_OR.shape)).astype(np.float32))
            for n, f in fresh.modules.items()
        },
    )


@given(
    ranks=st.lists(st.integers(1, 4), min_size=3, max_size=6),
    seed=st.integers(0, 999),
    fresh=st.booleans(),
)
def test_the_mean_of_vectors_is_the_mean_of_products(
    ranks: list[int], seed: int, fresh: bool
) -> None:
    """Against dense products: unequal ranks nest, and what nobody moved stays."""
    start = None if fresh else over_a(seed + 100)
    states = [over_a(seed + i, rank=r) for i, r in enumerate(ranks)]
    vectors = [change_vector(start, s, TERMS) for s in states]
    state = moved(start, np.mean(vectors, axis=0), base_digest=BASE, shapes=SHAPES, terms=TERMS)
    for name in SHAPES:
        dense = np.mean([s.modules[name].b_OR @ s.modules[name].a_RI for s in states], axis=0)
        got = state.modules[name].b_OR @ state.modules[name].a_RI
        np.testing.assert_allclose(got, dense, atol=1e-5)


def test_a_lower_rank_leaves_the_rest_alone() -> None:
    start, mine = over_a(1), over_a(2, rank=2)
    lifted = on_shared_a(mine, rank=4, seed=TERMS.a_seed)
    kept = with_rest(lifted, start, from_column=2)
    vector = change_vector(start, kept, TERMS)
    state = moved(start, vector, base_digest=BASE, shapes=SHAPES, terms=TERMS)
    for name, factors in state.modules.items():
        np.testing.assert_array_equal(factors.b_OR[:, 2:], start.modules[name].b_OR[:, 2:])
        np.testing.assert_allclose(factors.b_OR[:, :2], mine.modules[name].b_OR, atol=1e-6)


def test_c25_values_that_would_be_cut_off_are_refused() -> None:
    with pytest.raises(BadUpdate, match=r"of 36 values moved further .* \+-4; they would be") as no:
        change_vector(None, over_a(1, scale=9.0), TERMS)
    assert no.value.reason == "out_of_range"
    # The same place is no move, however far out it is.
    assert not change_vector(over_a(1, scale=9.0), over_a(1, scale=9.0), TERMS).any()


def test_updates_over_another_a_and_other_layers_are_refused() -> None:
    with pytest.raises(BadUpdate, match="is not the federation's shared one"):
        change_vector(None, a_state(1, rank=4), TERMS)
    part = replace(over_a(1), modules={"layer.q": over_a(1).modules["layer.q"]})
    with pytest.raises(BadUpdate, match="other layers than its start"):
        change_vector(over_a(2), part, TERMS)


@pytest.mark.parametrize("mean", [np.zeros(35), np.full(36, np.nan)])
def test_a_sum_of_something_else_changes_nothing(mean: np.ndarray) -> None:
    with pytest.raises(BadRound, match=r"the sum has the shape .* and 36 finite values were"):
        moved(None, mean, base_digest=BASE, shapes=SHAPES, terms=TERMS)


def test_no_two_sums_of_one_round_can_be_opened() -> None:
    assert [TERMS.threshold(n) for n in (3, 4, 5, 6, 9, 100)] == [3, 3, 3, 4, 5, 51]
    for n in range(3, 50):
        assert 2 * TERMS.threshold(n) > n


def test_a_sum_has_room_for_as_many_as_are_let_in() -> None:
    fixed = TERMS.fixed
    assert TERMS.most * fixed.levels < fixed.modulus <= (TERMS.most + 1) * fixed.levels


def test_a_sum_of_two_is_none() -> None:
    with pytest.raises(BadConfig, match="a secure sum of 2 devices tells each the other's: 3"):
        replace(TERMS, least=2)


def test_masks_are_uniform_and_the_same_for_the_same_seed() -> None:
    shapes = [(), (40, 100), (1000,)]
    drawn = masks(b"a" * 32, 1 << 32, shapes)
    assert [m.shape for m in drawn] == shapes
    again = masks(b"a" * 32, 1 << 32, shapes)
    assert all((a == b).all() for a, b in zip(drawn, again, strict=True))
    flat = np.concatenate([m.ravel() for m in drawn])
    assert flat.min() >= 0 and flat.max() < 1 << 32
    counts, _ = np.histogram(flat, bins=16, range=(0, 1 << 32))
    assert ((counts - len(flat) / 16) ** 2).sum() / (len(flat) / 16) < 45  # chi square, 15 degrees
    bits = [float(np.mean(flat >> b & 1)) for b in range(32)]
    assert all(0.45 < b < 0.55 for b in bits)


def test_seeds_that_flower_takes_for_one_give_other_masks() -> None:
    """Flower folds a seed's words into one of 32 bits: these two are its seed 0."""
    one, other = b"abcd" * 8, b"wxyz" * 8
    differ = masks(one, 1 << 32, [(500,)])[0] != masks(other, 1 << 32, [(500,)])[0]
    assert differ.mean() > 0.99


@pytest.mark.parametrize("modulus", [0, 1, 3, 1 << 33])
def test_masks_are_for_powers_of_two(modulus: int) -> None:
    with pytest.raises(ValueError, match=f"{modulus} is no power of two between 2 and"):
        masks(b"", modulus, [(1,)])
