"""The learned weight: monotone by structure, refused where it does not fit, the same redrawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusion_rows import net
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fusion_features import seen
from test_fusion_generate import CLOUD, EDGE, PIECES, Run, answering
from test_fusion_speculate import SLOW_MS, same

from floe.core.errors import BadConfig
from floe.core.request import Sampling
from floe.fusion.align import Alignment
from floe.fusion.features import NAMES, features
from floe.fusion.generate import Fuser
from floe.fusion.net import Net
from floe.fusion.predictor import Predictor, entropy_rule, oracle_shares, share
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.fusion.weigh import Network, Weigh, fixed
from floe.testing.virtual_time import run_virtual

TROUBLES = st.floats(0.0, 1e7)


def predictor(seed: int = 0, cloud: str = "own", otherwise: Weigh | None = None) -> Predictor:
    return Predictor(
        net=net(NAMES, seed),
        cloud_tokenizer=cloud,
        own_tokenizer="own",
        otherwise=otherwise or fixed(0.5),
    )


@given(
    st.integers(0, 1000), st.integers(0, 1000), st.tuples(TROUBLES, TROUBLES, st.floats(0, 1)),
    st.tuples(TROUBLES, TROUBLES, st.floats(0, 1)),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_network_trouble_only_raises_the_slms_share(
    weights: int, place: int, a: tuple[float, float, float], b: tuple[float, float, float]
) -> None:
    """Whatever was learned, and each of the three alone or together."""
    weigh, s = predictor(weights), seen(place)
    low = [min(x, y) for x, y in zip(a, b, strict=True)]
    w = [
        weigh(replace(s, network=Network(age_ms=n[0], round_trip_ms=n[1], loss=n[2])))
        for n in (
            [0.0, 0.0, 0.0],
            low,
            [low[0], low[1], max(a[2], b[2])],
            [max(a[0], b[0]), *low[1:]],
        )
    ]
    assert 0.0 <= w[0] <= w[1] <= min(w[2], w[3]) <= max(w) <= 1.0
    assert w[0] == pytest.approx(float(share(weigh.net(features(s)))))


def test_a_dead_network_leaves_the_slm_alone() -> None:
    gone = replace(seen(3), network=Network(age_ms=1e6))
    assert predictor()(gone) == pytest.approx(1.0)


def test_a_cloud_with_another_tokenizer_gets_the_other_weight() -> None:
    own, other = seen(2), seen(2, "other")
    weigh = predictor(cloud="other", otherwise=fixed(0.25))
    assert weigh(own) == 0.25
    assert weigh(other) != 0.25


def test_the_baselines() -> None:
    rule = entropy_rule(surest=0.9, least_sure=0.1, middle_nats=1.0)
    sure, unsure = seen(1), seen(1)
    flat = np.full_like(sure.log_q_V, -np.log(len(sure.log_q_V)))
    point = np.full_like(sure.log_q_V, -30.0)
    point[0] = 0.0
    assert rule(replace(sure, log_q_V=point)) == pytest.approx(0.9, abs=1e-3)
    assert 0.1 < rule(replace(unsure, log_q_V=flat)) < 0.5
    assert oracle_shares(np.array([0.5, 0.1]), np.array([0.2, 0.3])).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"weight must be between 0 and 1, not 1\.5"):
        fixed(1.5)


def test_a_network_comes_back_from_json_as_it_was() -> None:
    made = net(NAMES, 5)
    again = Net.from_json(json.loads(json.dumps(made.as_json())), names=NAMES)
    rows = np.random.default_rng(0).normal(size=(7, len(NAMES)))
    assert again(rows) == pytest.approx(made(rows), abs=1e-4)
    assert again(rows[0]) == pytest.approx(again(rows)[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": ["x"]}, "its inputs have other names than this version computes"),
        ({"mean": [0.0]}, "an array has shape (1,), not (18,)"),
        ({"out_bias": float("nan")}, "a number in it is not finite"),
        ({"scale": [0.0] * 18}, "a scale is not above 0"),
        ({"hidden": "x"}, "could not convert"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadConfig, match="the fusion weights cannot be used") as error:
        Net.from_json(net(NAMES).as_json() | change, names=NAMES)
    assert reason in error.value.message


@given(
    seed=st.integers(0, 2**32),
    weights=st.integers(0, 20),
    temperature=st.sampled_from([0.0, 0.9]),
    delay_ms=st.sampled_from([0, 7, 80]),
)
@settings(max_examples=25, deadline=None)
def test_with_a_learned_weight_speculation_is_still_exact(
    seed: int, weights: int, temperature: float, delay_ms: int
) -> None:
    sampling = Sampling(max_tokens=14, temperature=temperature, seed=seed)
    shared: dict[str, Any] = {
        "weight": predictor(weights),
        "alignment": Alignment(token_bytes=PIECES, eos_ids=EDGE.info.eos_ids),
        "eos_ids": EDGE.info.eos_ids,
        "token_bytes": EDGE.token_bytes,
    }
    limits = Limits(budget_ms=SLOW_MS, first_budget_ms=SLOW_MS)
    cloud = answering(CLOUD, lambda n: delay_ms / 1000)
    drafted = run_virtual(Run().go(SpeculativeFuser(limits=limits, **shared), sampling, cloud))
    asked = Fuser(budget_ms=SLOW_MS, first_budget_ms=SLOW_MS, **shared)
    same(drafted, run_virtual(Run().go(asked, sampling, cloud)))


def test_nothing_that_is_shipped_can_run_code() -> None:
    import floe.fusion

    folder = Path(floe.fusion.__file__).parent / "data"
    assert {p.suffix for p in folder.iterdir()} <= {".json", ".npz", ".md"}
