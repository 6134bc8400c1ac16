"""One A for all devices: orthonormal, nested, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.federated.shared_a import shared_a


@given(n_inputs=st.integers(8, 80), rank=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_rows_are_orthonormal_and_lower_ranks_are_the_first_rows(
    n_inputs: int, rank: int, seed: int
) -> None:
    a_RI = shared_a((5, n_inputs), rank, seed)
    assert a_RI.dtype == np.float32
    np.testing.assert_allclose(a_RI @ a_RI.T, np.eye(rank), atol=1e-5)
    higher = shared_a((99, n_inputs), 8, seed)  # the outputs do not matter
    np.testing.assert_allclose(higher[:rank], a_RI, atol=1e-6)


def test_norms_of_b_are_norms_of_products() -> None:
    a_RI = shared_a((40, 30), 6, 3)
    b_OR = np.random.default_rng(0).normal(size=(40, 6))
    assert np.linalg.norm(b_OR @ a_RI) == pytest.approx(np.linalg.norm(b_OR), rel=1e-6)


def test_seeds_draw_different_rows() -> None:
    one, same, other = (shared_a((4, 30), 4, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.1


@pytest.mark.parametrize("rank", [0, -1, 31])
def test_ranks_out_of_range_are_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is not within 1 and 30"):
        shared_a((4, 30), rank, 0)
