"""The road to the cloud counts only where nobody can expect the same answer again."""

from __future__ import annotations

import pytest
from test_fusion_generate import CLOUD, EDGE, PIECES, Run, scoring
from test_fusion_speculate import SLOW_MS

from floe.core.request import Sampling
from floe.fusion.align import Alignment
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.fusion.weigh import Network, Seen
from floe.testing.virtual_time import run_virtual

LOSSY = Network(round_trip_ms=900.0, loss=0.5)


def networks_seen(sampling: Sampling) -> list[Network]:
    seen: list[Network] = []

    def weigh(place: Seen) -> float:
        seen.append(place.network)
        return 0.5

    fuse = SpeculativeFuser(
        weight=weigh,
        limits=Limits(budget_ms=SLOW_MS, first_budget_ms=SLOW_MS),
        alignment=Alignment(token_bytes=PIECES, eos_ids=EDGE.info.eos_ids),
        eos_ids=EDGE.info.eos_ids,
        token_bytes=EDGE.token_bytes,
        network=lambda: LOSSY,
    )
    run_virtual(Run().go_in_blocks(fuse, sampling, scoring(CLOUD, lambda n: 0.02)))
    assert seen
    return seen


@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_tokens=6), Sampling(max_tokens=6, temperature=1.0, seed=3)],
    ids=["greedy", "seeded"],
)
def test_answers_that_can_be_drawn_again_do_not_see_it(sampling: Sampling) -> None:
    assert set(networks_seen(sampling)) == {Network()}


def test_free_answers_see_round_trip_loss_and_age() -> None:
    seen = networks_seen(Sampling(max_tokens=6, temperature=1.0))
    assert {(n.round_trip_ms, n.loss) for n in seen} == {(900.0, 0.5)}
    assert all(n.age_ms >= 0.0 for n in seen)
