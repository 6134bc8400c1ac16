"""The Gymnasium environment: its own checker, and that it plays the simulator's game."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from floe.core.errors import Missing
from floe.power.boards.catalogue import fitted
from floe.power.controllers.learned import N_FEATURES
from floe.power.env import board_env


def test_without_gymnasium_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(Missing, match=r"pip install 'floe\[power-train\]'"):
        board_env(fitted("v100").model)


def test_gymnasium_finds_nothing_wrong_with_it() -> None:
    checker = pytest.importorskip("gymnasium.utils.env_checker")
    checker.check_env(board_env(fitted("v100").model, n_jobs=2, seed=3), skip_render_check=True)


def test_an_episode_is_its_jobs_and_full_speed_costs_one_a_step() -> None:
    pytest.importorskip("gymnasium")
    model = fitted("odroid-xu3").model
    env = board_env(model, n_jobs=3, seed=1)
    seen, _ = env.reset(seed=4)
    assert seen.shape == (N_FEATURES,) and env.action_space.n == model.n_settings
    rewards, done, prefills = [], False, 0
    while not done:
        prefills += bool(seen[0] > 0.5)
        seen, reward, done, cut, _ = env.step(model.fastest)
        rewards.append(float(reward))
        assert not cut and np.isfinite(reward)
    assert prefills == 3
    # A prefill weighs four steps; a block of fewer than eight tokens less than one.
    assert all(-4.3 <= r < 0 for r in rewards)


def test_slower_costs_less_until_goals_are_missed() -> None:
    pytest.importorskip("gymnasium")
    model = fitted("odroid-xu3").model

    def total(action: int, price: float) -> float:
        env = board_env(model, n_jobs=6, seed=1, miss_price=price)
        env.reset(seed=2)
        summed, done = 0.0, False
        while not done:
            _, reward, done, _, _ = env.step(action)
            summed += float(reward)
        return summed

    assert total(0, 0.0) > total(model.fastest, 0.0)
    assert total(0, 1000.0) < total(model.fastest, 1000.0)


def test_the_same_seed_is_the_same_episode() -> None:
    pytest.importorskip("gymnasium")
    env = board_env(fitted("v100").model, n_jobs=2)
    first, _ = env.reset(seed=9)
    env.step(0)
    again, _ = env.reset(seed=9)
    assert first.tolist() == again.tolist()
