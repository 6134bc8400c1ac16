"""The faults are really put in, and the figures would tell if one were not survived."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.federated.learning_stand_ins import a_state, an_update

from floe.evaluation.federated_faults import FAULTS, QUICK, TOLD, Plan, World, flip
from floe.federated.on_torch.base_model import load_base
from floe.federated.products import dense, state_difference
from floe.federated.report import read_reports
from floe.testing.tiny_model import make_tiny_model

PLAN = Plan(n_layers=2, rounds=2, steps=1, examples=6, held_out=4)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    base = load_base(make_tiny_model(tmp_path_factory.mktemp("tiny")).folder)
    return World(base, PLAN, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", ["nan", "server_kill", "duplicate", "corrupt"])
def test_a_fault_is_put_in_told_and_survived(world: World, name: str) -> None:
    clean = world.run(f"clean-{name}")
    loss = FAULTS[name](world)
    assert world.told(name)
    assert abs(loss - clean) <= 0.02 * clean
    assert not TOLD[name](read_reports(world.folder / f"clean-{name}" / "server"))


def test_a_flipped_update_goes_as_far_the_other_way() -> None:
    start = a_state(1)
    for before in (None, start):
        honest = an_update("a", 2)
        turned = flip(before, honest)
        there = state_difference(honest.state, before)
        back = state_difference(turned.state, before)
        for name, factors in there.modules.items():
            assert np.allclose(dense(factors), -dense(back.modules[name]), atol=1e-4)


def test_every_fault_has_a_sign_to_be_told_by() -> None:
    assert FAULTS.keys() == TOLD.keys()
    assert QUICK.rounds >= 2
    assert not any(told([]) for name, told in TOLD.items() if name == "dropout")


def test_told_needs_reports(world: World, tmp_path: Path) -> None:
    assert not World(world.base, PLAN, tmp_path).told("nan")
