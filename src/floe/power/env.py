"""The simulated board as a Gymnasium environment: the one door to gymnasium.

An episode is a number of jobs. An action is a setting of the board for the next step, the
observation is what a controller sees (`controllers.learned.features`). The reward is minus the
energy over what the fastest setting would have taken, with a price on every missed goal.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from floe.core.errors import Missing
from floe.power.base import Clocks, ControlState
from floe.power.boards.model import BoardModel
from floe.power.controllers.dqn import observation
from floe.power.controllers.learned import N_FEATURES
from floe.power.simulate import Simulation
from floe.power.workload import workload

if TYPE_CHECKING:
    import gymnasium


def board_env(
    model: BoardModel, *, n_jobs: int = 8, seed: int = 0, miss_price: float = 20.0
) -> gymnasium.Env[Any, Any]:
    """An environment over the board.

    Raises:
        Missing: gymnasium is not installed.
    """
    try:
        gym = importlib.import_module("gymnasium")
    except ImportError as error:
        raise Missing("gymnasium is not installed: pip install 'floe[power-train]'") from error

    class BoardEnv(gym.Env):  # type: ignore[misc, name-defined]
        """One board, one queue of jobs an episode."""

        observation_space = gym.spaces.Box(-10.0, 10.0, (N_FEATURES,), np.float32)
        action_space = gym.spaces.Discrete(model.n_settings)

        def __init__(self) -> None:
            self._first, self._episode = seed, 0

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            """Begin another episode; its jobs follow from the seed and its number."""
            super().reset(seed=seed, options=options)
            if seed is not None:
                self._first, self._episode = seed, 0
            self._episode += 1
            jobs = workload(
                model, n=n_jobs, part="train", seed=self._first * 100_003 + self._episode
            )
            self._world = Simulation(model)
            self._play: Generator[ControlState, Clocks, None] = self._world.play(jobs)
            self._state = _busy(self._play, next(self._play), model)
            assert self._state is not None
            return _seen(self._state, model), {}

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            """Set the clocks, take the step."""
            assert self._state is not None
            before_j, done_before, phase = self._energy(), self._world.n_served, self._state.phase
            fast_j = _fast_j(model, self._state)
            try:
                state: ControlState | None = self._play.send(model.clocks(int(action)))
                if state is not None:
                    state = _busy(self._play, state, model)
            except StopIteration:
                state = None
            reward = -(self._energy() - before_j) / fast_j * (4.0 if phase == "prefill" else 1.0)
            for one in self._world.result().served[done_before:]:
                reward -= miss_price * (one.late_first + one.late_tokens)
            self._state = state or self._state
            return _seen(self._state, model), reward, state is None, False, {}

        def _energy(self) -> float:
            return self._world.result().energy_j

    made: gymnasium.Env[Any, Any] = BoardEnv()
    return made


def _busy(
    play: Generator[ControlState, Clocks, None], state: ControlState, model: BoardModel
) -> ControlState | None:
    """The next state with work to do: nothing is learned of idle times."""
    slow = model.thriftiest
    try:
        while state.phase == "idle":
            state = play.send(model.clocks(slow))
    except StopIteration:
        return None
    return state


def _seen(state: ControlState, model: BoardModel) -> Any:
    return observation(state, model).astype(np.float32)


def _fast_j(model: BoardModel, state: ControlState) -> float:
    """Joules of the step at the fastest setting."""
    fast = model.fastest
    if state.phase == "prefill":
        return float(model.prefill_ms(state.prompt_tokens)[fast] * model.prefill_w_S[fast]) / 1000
    context = state.prompt_tokens + state.tokens_done
    return float(8 * model.decode_ms(context)[fast] * model.decode_w_S[fast]) / 1000
