"""Adapters of unequal ranks made comparable: tasks are found where a plain cosine finds ranks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy", reason="an extra: pip install 'floe[fed]'")

from floe.federated.clusters import group
from floe.federated.comparable import comparable
from floe.federated.products import state_norm
from floe.federated.start import fresh_state
from floe.federated.update import AdapterState, Factors

SHAPES = {"x": (24, 40), "y": (16, 40)}


def device(task: int, rank: int, *, seed: int, tasks: int = 4) -> AdapterState:
    """Moves as all devices do, a little as its task asks, and much in what its rank alone has."""
    rng = np.random.default_rng(seed)
    fresh = fresh_state("base", SHAPES, rank=rank, seed=0)
    modules = {}
    for place, (name, factors) in enumerate(fresh.modules.items()):
        n_out = SHAPES[name][0]
        common = np.random.default_rng(100 + place).normal(size=(32, n_out))[:rank].T
        own = np.random.default_rng(200 + 10 * task + place).normal(size=(n_out, 4))
        b = common + 0.3 * rng.normal(size=(n_out, rank))
        b[:, :4] += 0.8 * own * min(tasks, 1)
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b.astype(np.float32))
    return AdapterState(base_digest="base", modules=modules)


def test_tasks_are_found_among_devices_of_all_ranks() -> None:
    ranks = (4, 32, 8, 16)
    states = {
        f"t{task}-{n}": device(task, ranks[(task + n) % 4], seed=10 * task + n)
        for task in range(4)
        for n in range(2)
    }
    tasks = {tuple(sorted(n for n in states if n.startswith(f"t{t}"))) for t in range(4)}
    plain = group(states)
    assert {c.members for c in plain.clusters} != tasks  # what this is for
    unit, mean = comparable(states, seed=0)
    assert {c.members for c in group(unit, start=mean).clusters} == tasks
    assert {s.rank for s in unit.values()} == {4}
    assert all(state_norm(s) == pytest.approx(1.0, abs=1e-5) for s in unit.values())


def test_devices_of_one_task_stay_one_group() -> None:
    states = {f"c{n}": device(0, 4 * (1 + n % 3), seed=n) for n in range(6)}
    unit, mean = comparable(states, seed=0)
    assert len(group(unit, start=mean).clusters) == 1


def test_few_devices_are_compared_without_a_mean() -> None:
    states = {f"c{n}": device(0, 4, seed=n) for n in range(3)}
    unit, mean = comparable(states, seed=0)
    assert mean is None
    assert len(group(unit, start=mean).clusters) == 1


def test_an_adapter_that_changes_nothing_has_no_direction() -> None:
    states = {f"c{n}": device(0, 4, seed=n) for n in range(4)}
    states["still"] = fresh_state("base", SHAPES, rank=4, seed=0)
    unit, mean = comparable(states, seed=0)
    assert state_norm(unit["still"]) == 0.0
    assert mean is not None
    expected = np.mean([s.modules["x"].b_OR for s in unit.values()], axis=0)
    np.testing.assert_allclose(mean.modules["x"].b_OR, expected, atol=1e-6)
