from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from array_cases import state, update

from floe.core.errors import BadConfig, BadRound
from floe.federated.weights import Staleness, round_weights, weighted_mean

ADAPTER = state(np.random.default_rng(0), 1)


def updates(*counts: int, rounds: tuple[int, ...] = ()):
    found = [update(ADAPTER, f"d{i}", n) for i, n in enumerate(counts)]
    return [
        replace(u, round_number=r) for u, r in zip(found, rounds or [5] * len(found), strict=True)
    ]


def test_examples_weigh_and_shares_sum_to_one():
    assert round_weights(updates(1, 3), round_number=5) == [0.25, 0.75]
    assert sum(round_weights(updates(7, 11, 13), round_number=5)) == pytest.approx(1.0)


def test_what_a_device_claims_can_be_bounded():
    found = round_weights(updates(10, 10**9), round_number=5, at_most_examples=30)
    assert found == [0.25, 0.75]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (Staleness(), [1.0, 1.0, 1.0, 1.0]),
        (Staleness(kind="polynomial", power=1.0), [1.0, 1 / 2, 1 / 3, 1 / 6]),
        (Staleness(kind="hinge", power=2.0, grace=1), [1.0, 1.0, 1 / 3, 1 / 9]),
    ],
)
def test_late_updates_lose_weight_as_the_rule_says(rule, wanted):
    assert [rule.weight(age) for age in (0, 1, 2, 5)] == pytest.approx(wanted)
    assert rule.weight(-3) == 1.0


def test_staleness_and_examples_multiply():
    rule = Staleness(kind="polynomial", power=1.0)
    found = round_weights(updates(4, 4, rounds=(5, 4)), round_number=5, staleness=rule)
    assert found == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("counts", [(0, 0), (), (-3, 0)])
def test_c01_no_examples_at_all_is_no_round(counts):
    with pytest.raises(BadRound, match="weigh 0 together, so there is no mean; the last good"):
        round_weights(updates(*counts), round_number=5)


def test_c02_a_mean_of_no_data_is_none():
    assert weighted_mean([2.0, 3.0], [0.0, 0.0]) is None
    assert weighted_mean([], []) is None
    assert weighted_mean([float("nan")], [4.0]) is None
    assert weighted_mean([2.0, 4.0, float("inf")], [1.0, 3.0, 9.0]) == 3.5


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(BadConfig, match=r'no staleness weight named .*did you mean "polynomial"'):
        Staleness(kind="polynom")
    with pytest.raises(BadConfig, match="known: constant, polynomial, hinge"):
        Staleness(kind="zzz")
    for bad in (float("nan"), -1.0):
        with pytest.raises(BadConfig, match="power and grace of staleness must be 0 or more"):
            Staleness(kind="hinge", power=bad)
