"""What the learner sees of a prompt, and what general prompts look like: each of one encoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.outcome import Outcome
from floe.core.route import Route, Share
from floe.core.sections import RoutingConfig
from floe.routing.embed import StaticEmbedding, shipped_background
from floe.routing.features import Projection, basis_of, shipped_basis
from floe.routing.general import SLOPE, USUAL, General, directions_of, shipped_general
from floe.routing.learner import Learner


@pytest.fixture(scope="module")
def embedding(pulled: object) -> StaticEmbedding:
    model = pulled("wordllama-256")  # type: ignore[operator]
    return StaticEmbedding(
        weights=model.files["weights"], tokenizer=model.files["tokenizer"],
        digest=model.digest, background=shipped_background(model.digest),
    )  # fmt: skip


def test_b34_b35_what_ships_is_used_with_its_own_encoder_only(embedding: StaticEmbedding) -> None:
    basis = shipped_basis(embedding.digest)
    assert basis is not None
    assert basis.shape == (256, 64)
    assert shipped_basis("another") is None
    general = "Write a short poem about the sea for my grandmother."
    maths = "Tom has 3 apples and buys 4 more for 2 dollars each. How much did he spend?"
    raised = [
        shipped_general(embedding.digest).threshold(embedding(t), 0.25) for t in (general, maths)
    ]
    assert raised[0] > 0.27
    assert raised[1] < raised[0]
    assert shipped_general("another").threshold(embedding(general), 0.25) == 0.25


def test_directions_differ_most_first_and_keep_lengths(embedding: StaticEmbedding) -> None:
    basis = shipped_basis(embedding.digest)
    assert basis is not None
    gram = basis.T @ basis
    assert gram == pytest.approx(np.eye(64) * gram[0, 0], abs=0.01)
    see = Projection(encoder_digest=embedding.digest, embedding_width=256, width=32)
    x = see(embedding("Who owns the copyright of a letter?"))
    assert x.shape == (33,)
    assert x[-1] == 1.0
    assert 0.2 < float(x[:-1] @ x[:-1]) < 3.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), width=st.integers(1, 40))
def test_other_encoders_get_directions_of_their_digest(seed: int, width: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((200, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    one, same = (Projection(encoder_digest="x", embedding_width=32, width=width) for _ in "ab")
    assert one.width == same.width == min(width, 32) + 1
    seen = np.array([one(v) for v in vectors])
    assert (seen == np.array([same(v) for v in vectors])).all()
    assert np.square(seen[:, :-1]).sum(axis=1).mean() == pytest.approx(1, abs=0.35)
    if width < 32:
        other = Projection(encoder_digest="y", embedding_width=32, width=width)
        assert not np.allclose(other(vectors[0]), seen[0])


def test_the_basis_is_that_of_the_largest_variance() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((500, 6)) * np.array([0.1, 3.0, 0.1, 1.0, 0.1, 0.1])
    basis = basis_of(rows, 2)
    assert np.abs(basis).argmax(axis=0).tolist() == [1, 3]
    assert np.square(rows @ basis).sum(axis=1).mean() == pytest.approx(1)


def test_the_threshold_rises_near_general_directions() -> None:
    general = General(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=np.float32))
    near, far, away = np.eye(3, dtype=np.float32)[1], np.eye(3, dtype=np.float32)[2], -np.ones(3)
    assert general.threshold(near, 0.25) == pytest.approx(0.25 + SLOPE * (1 - USUAL))
    assert general.threshold(far, 0.25) == pytest.approx(0.25 - SLOPE * USUAL)
    assert general.threshold(away.astype(np.float32), 0.25) == general.threshold(far, 0.25)


def test_general_directions_are_middles_of_clusters() -> None:
    rng = np.random.default_rng(0)
    middles = np.eye(5)[:3]
    rows = np.repeat(middles, 40, axis=0) + 0.05 * rng.standard_normal((120, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = directions_of(rows[rng.permutation(120)], 3, seed=3)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)
    assert (found @ middles.T).max(axis=0) == pytest.approx(1, abs=0.02)


def test_b32_the_users_own_model_and_prompts_decide_what_is_learned(
    embedding: StaticEmbedding,
) -> None:
    """Any LLM's agreement on any prompts will do; nothing is asked of anybody else."""
    ours = [f"How many euros are {n} pounds and {n + 7} pence?" for n in range(30)]
    one = Learner(
        config=RoutingConfig(agreement=True), encoder_digest=embedding.digest, embedding_width=256
    )
    for n, text in enumerate(ours):
        name = ("good", "bad")[n % 2]
        share = Share(name=name, digest=name, weight=1.0)
        told = Outcome(
            request_id=str(n), tenant="default", route=Route(shares=(share,), how="routed"),
            topic=text, wait_ms=0.0, first_token_ms=None, total_ms=1.0, completion_tokens=30,
            agreement=(-0.5, -1.5)[n % 2], agreement_tokens=30,
        )  # fmt: skip
        one.learn(told, embedding(text), {name: 0.4}, threshold=0.25)
    new = embedding("How many dollars are 12 euros and 50 cents?")
    moved = one.moved(("good", "bad"), new, np.array([0.4, 0.41]), np.zeros(2), threshold=0.25)
    assert moved.cos[0] > moved.cos[1]
