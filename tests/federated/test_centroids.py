"""Centroids of clusters: from public prompts, or with as much noise as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRound
from floe.federated.centroids import contrasted, private_centroid, public_centroid, signal_to_noise

D = 16


def draw(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (n, D))


def plain(vectors: np.ndarray, **more: object) -> np.ndarray:
    settings = {"noise_multiplier": 0.0, "min_members": 1, **more}
    found = private_centroid(
        vectors,
        encoder_digest="e",
        rng=np.random.default_rng(0),
        **settings,  # type: ignore[arg-type]
    )
    assert found.encoder_digest == "e"
    return np.array(found.vector)


@given(n=st.integers(1, 6), seed=st.integers(0, 20), scale=st.sampled_from([0.01, 1.0, 1e6]))
def test_without_noise_it_is_the_middle_of_the_clipped_vectors(
    n: int, seed: int, scale: float
) -> None:
    vectors = draw(n, seed, scale)
    total = sum(v * min(1.0, 1.0 / np.linalg.norm(v)) for v in vectors)
    np.testing.assert_allclose(plain(vectors), total / np.linalg.norm(total), atol=1e-6)


def test_one_device_moves_the_sum_by_no_more_than_the_sensitivity() -> None:
    """However large its vector: the released sum, before its length is taken away, is clipped."""
    base = np.tile(np.eye(D)[0], (3, 1))
    with_one = plain(np.vstack([base, 1e9 * np.eye(D)[1:2]]))
    np.testing.assert_allclose(with_one[:2] * np.sqrt(10), [3.0, 1.0], atol=1e-5)


def test_the_noise_has_the_stated_size() -> None:
    """Of a sum that is zero only the noise is left; its direction is even and its size known."""
    rng = np.random.default_rng(5)
    vectors = np.vstack([np.eye(D)[0] * 0.5] * 4)  # the sum has length 2, sigma is 2 / coordinate
    draws = []
    for _ in range(2000):
        made = private_centroid(
            vectors, encoder_digest="e", noise_multiplier=2.0, min_members=4, rng=rng
        )
        draws.append(made.vector)
    found = np.array(draws)
    oracle_rng = np.random.default_rng(6)
    noisy = np.eye(D)[0] * 2.0 + oracle_rng.normal(0, 2.0, (2000, D))
    oracle = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    assert found[:, 0].mean() == pytest.approx(oracle[:, 0].mean(), abs=0.02)
    assert found.std() == pytest.approx(oracle.std(), abs=0.005)


def test_few_devices_give_none() -> None:
    with pytest.raises(BadRound, match="a centroid of 2 devices would show theirs: 3"):
        plain(draw(2), min_members=3)
    with pytest.raises(BadRound, match="a centroid of 0 devices"):
        plain(np.zeros((0, D)))
    with pytest.raises(BadRound, match="cancel out"):
        plain(np.vstack([np.eye(D)[0], -np.eye(D)[0]]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_c11_noise_and_vectors_are_finite(bad: float) -> None:
    with pytest.raises(BadConfig, match="noise_multiplier must be finite"):
        plain(draw(3), noise_multiplier=bad)
    if not math.isfinite(bad):
        vectors = draw(3)
        vectors[0, 0] = bad
        with pytest.raises(BadConfig, match="one finite vector from each device"):
            plain(vectors)
        with pytest.raises(BadConfig, match="must be finite"):
            public_centroid(vectors, [1.0] * 3, encoder_digest="e")


def test_public_prompts_count_by_what_the_adapter_gains_there() -> None:
    vectors = np.eye(8)
    gains = [0.9, 0.3, -0.5, 0.0, 0.1, 0.2, -0.1, 0.05]
    found = np.array(public_centroid(vectors, gains, encoder_digest="e").vector)
    wanted = np.array([0.9, 0.3, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-6)
    whole = np.array(public_centroid(vectors, gains, encoder_digest="e", share=1.0).vector)
    assert whole[2] == whole[6] == 0.0 and whole[4] > 0.0
    longer = public_centroid(7.0 * vectors, gains, encoder_digest="e")
    np.testing.assert_allclose(longer.vector, found, atol=1e-6)


def test_what_sets_an_adapter_apart_is_its_topic() -> None:
    """All gain most on the first prompt; each has a prompt of its own where it gains more."""
    gains = np.array([[2.0, 0.8, 0.1], [2.0, 0.1, 0.8]])
    assert gains.argmax(axis=1).tolist() == [0, 0]
    assert contrasted(gains).argmax(axis=1).tolist() == [1, 2]
    np.testing.assert_array_equal(contrasted(gains[:1]), gains[:1])


def test_an_adapter_that_helps_nowhere_is_not_routed() -> None:
    with pytest.raises(BadRound, match="it is reached by name"):
        public_centroid(np.eye(4), [-1.0, -0.1, 0.0, -3.0], encoder_digest="e")
    for gains, share in (([1.0], 0.25), ([1.0] * 4, 0.0), ([1.0] * 4, 1.5)):
        with pytest.raises(BadConfig, match=r"a gain for each public prompt|share must be"):
            public_centroid(np.eye(4), gains, encoder_digest="e", share=share)


def test_signal_to_noise_says_how_many_devices_it_takes() -> None:
    assert signal_to_noise(32, 256, 1.0) == 2.0
    assert signal_to_noise(1, 256, 0.0) == math.inf
