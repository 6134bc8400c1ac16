from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from fusion_rows import EOS, PIECES, advice_of, log_probs
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.fusion.align import Alignment
from floe.fusion.features import EDGE_NAMES, NAMES, edge_features, features
from floe.fusion.weigh import Network, Seen, Standing

ALIGNMENT = Alignment(token_bytes=PIECES, eos_ids=EOS)
SEEDS = st.integers(0, 2**32 - 1)


def seen(seed: int, tokenizer: str = "") -> Seen:
    rng = np.random.default_rng(seed)
    log_q_V, advice = log_probs(rng, len(PIECES)), advice_of(rng, 0, tokenizer)
    mapped = ALIGNMENT.mapped(advice, log_q_V)
    assert mapped is not None
    return Seen(log_q_V=log_q_V, advice=advice, mapped=mapped)


def named(s: Seen) -> dict[str, float]:
    return dict(zip(NAMES, features(s).tolist(), strict=True))


def slow_edge(log_q_V: np.ndarray) -> dict[str, float]:
    q = sorted((float(np.exp(x)) for x in log_q_V), reverse=True)
    return {
        "edge_entropy": -sum(x * log(x) for x in q if x > 0),
        "edge_top": q[0],
        "edge_doubt": -log(max(1 - q[0], 1e-6)),
        "edge_margin": min(log(q[0] / max(q[1], 1e-6)), 12.0),
    }


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_the_slms_features_are_those_counted_by_hand(seed: int) -> None:
    log_q_V = log_probs(np.random.default_rng(seed), 50, sharp=3.0)
    found = dict(zip(EDGE_NAMES, edge_features(log_q_V).tolist(), strict=True))
    assert found == pytest.approx(slow_edge(log_q_V), rel=1e-3, abs=1e-4)


def test_an_impossible_token_makes_no_nan_and_the_input_is_left_alone() -> None:
    log_q_V = np.array([np.log(0.5), np.log(0.5), -np.inf], dtype=np.float32)
    before = log_q_V.copy()
    assert edge_features(log_q_V) == pytest.approx([log(2), 0.5, log(2), 0.0], abs=1e-6)
    assert (log_q_V == before).all()


@given(SEEDS, st.sampled_from(["", "other"]))
@settings(max_examples=50, deadline=None)
def test_the_joint_features_are_those_counted_by_hand(seed: int, tokenizer: str) -> None:
    s = seen(seed, tokenizer)
    p = dict(zip(s.mapped.ids_C.tolist(), s.mapped.masses_C.tolist(), strict=True))
    q = np.exp(s.log_q_V.astype(float))
    inside = sum(q[i] for i in p)
    both = [(q[i], m) for i, m in p.items()] + [(1 - inside, max(0.0, 1 - sum(p.values())))]
    best, top = max(p, key=lambda i: p[i]), int(np.argmax(q))
    found = named(s)
    assert found["cloud_top"] == pytest.approx(p[best])
    assert found["cloud_entropy"] == pytest.approx(-sum(m * log(m) for _, m in both if m > 0))
    assert found["overlap"] == pytest.approx(sum(min(a, b) for a, b in both), abs=1e-6)
    middle = [(a + b) / 2 for a, b in both]
    entropy = lambda xs: -sum(x * log(x) for x in xs if x > 0)  # noqa: E731
    divergence = (
        entropy(middle) - (entropy([a for a, _ in both]) + entropy([b for _, b in both])) / 2
    )
    assert found["divergence"] == pytest.approx(divergence, abs=1e-6)
    assert 0.0 <= found["divergence"] <= log(2) + 1e-9
    assert found["agree"] == float(best == top)
    assert found["edge_on_cloud_top"] == pytest.approx(q[best])
    assert found["cloud_on_edge_top"] == pytest.approx(p.get(top, 0.0))
    assert found["edge_mass_on_sent"] == pytest.approx(inside)


def test_what_holds_for_the_whole_request_is_a_feature_and_the_network_is_none() -> None:
    s = seen(1)
    told = replace(s, standing=Standing(route_confidence=0.7, masked=True))
    found = named(told)
    assert (found["route_confidence"], found["masked"]) == (0.7, 1.0)
    late = replace(told, network=Network(age_ms=900.0, round_trip_ms=80.0, loss=0.2))
    assert (features(late) == features(told)).all()
    assert named(replace(s, advice=replace(s.advice, unasked=0.25)))["cloud_unasked"] == 0.25
