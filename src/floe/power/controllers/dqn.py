"""A Q network's controller: the setting with the highest value, one network for one board."""

from __future__ import annotations

import numpy as np

from floe.power.base import ControlState, Goals, Step
from floe.power.boards.model import BoardModel
from floe.power.controllers.learned import features
from floe.power.controllers.policy import Policy


class Dqn:
    """Greedy in the values that `scripts/train_dqn.py` learned; numpy only."""

    name = "dqn"

    def __init__(self, model: BoardModel, values: Policy) -> None:
        self._model, self._values = model, values
        self._idle = model.thriftiest

    def begin(self, goals: Goals) -> None:
        """Goals come with every state."""

    def decide(self, state: ControlState) -> dict[str, float]:
        """MHz by domain for the next step."""
        if state.phase == "idle":
            return self._model.clocks(self._idle)
        return self._model.clocks(int(np.argmax(self._values(observation(state, self._model)))))

    def seen(self, step: Step) -> None:
        """Nothing is learned while serving."""


def observation(state: ControlState, model: BoardModel) -> np.ndarray:
    """The features of a state when the board's own table gives the fastest time (F,)."""
    fast = model.fastest
    if state.phase == "prefill":
        fast_ms = float(model.prefill_ms(state.prompt_tokens)[fast])
        return features(state, state.ttft_left_ms / fast_ms, model)
    fast_ms = float(model.decode_ms(state.prompt_tokens + state.tokens_done)[fast])
    return features(state, state.tpot_allowed_ms / fast_ms, model)
