"""What every controller keeps, as a list of checks to run on an implementation."""

from __future__ import annotations

import builtins
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from floe.power.base import Controller, ControlState, Goals, Phase, Step
from floe.power.boards.model import BoardModel

Make = Callable[[], Controller]
GOALS = Goals(ttft_ms=4000.0, tpot_ms=150.0)


def states(model: BoardModel, *, n: int = 60, seed: int = 0) -> list[ControlState]:
    """All kinds of states, among them late, hot, loaded and nearly empty ones."""
    rng = random.Random(seed)
    made = []
    for _ in range(n):
        phase: Phase = rng.choice(("prefill", "decode", "decode", "idle"))
        made.append(
            ControlState(
                phase=phase,
                prompt_tokens=rng.choice((0, 1, 64, 2000)),
                tokens_done=rng.choice((0, 1, 100)),
                tokens_left=rng.choice((0.0, 1.0, 3.7, 200.0)),
                ttft_left_ms=rng.choice((-500.0, 0.0, 900.0, 1e6)),
                tpot_allowed_ms=rng.choice((-5.0, 0.0, 60.0, 120.0, 1e5)),
                clocks=model.clocks(rng.randrange(model.n_settings)),
                temperature_c=rng.choice((20.0, 60.0, 73.0, 95.0)),
                load=rng.choice((0.0, 0.4, 1.0)),
                battery=rng.choice((None, 0.0, 0.5)),
                waiting=rng.choice((0, 0, 3, 50)),
            )
        )
    return made


def check_clocks(make: Make, model: BoardModel) -> None:
    """Every domain is named, with a frequency that the board takes."""
    for chosen in _walk(make(), model):
        assert chosen.keys() == {d.name for d in model.board.domains}
        for domain in model.board.domains:
            assert chosen[domain.name] in domain.steps_mhz, (domain.name, chosen)


def check_deterministic(make: Make, model: BoardModel) -> None:
    """The same history, the same choices; `decide` alone changes nothing that it says next."""
    assert _walk(make(), model) == _walk(make(), model)


def check_never_blocks(make: Make, model: BoardModel) -> None:
    """No file, no socket, no sleep while it decides and learns."""
    controller = make()
    with _no_waiting():
        _walk(controller, model)


def check_states_untouched(make: Make, model: BoardModel) -> None:
    """The clocks in a state, and those given out, belong to the caller."""
    controller = make()
    controller.begin(GOALS)
    state = states(model, seed=3)[0]
    before = dict(state.clocks)
    first = controller.decide(state)
    first.clear()
    assert dict(state.clocks) == before and controller.decide(state)


def check_no_ripple(make: Make, model: BoardModel, *, ripple: float = 0.002) -> None:
    """A goal that trembles by a few thousandths does not make the clocks tremble."""
    controller = make()
    controller.begin(GOALS)
    slowest_ms, fastest_ms = (float(f(model.decode_ms(100))) for f in (max, min))
    for allowed_ms in (1.02 * fastest_ms, (slowest_ms + fastest_ms) / 2, 1.1 * slowest_ms):
        clocks, changes = model.clocks(model.fastest), 0
        for n in range(60):
            state = replace(
                _decoding(model), clocks=clocks, tokens_done=1 + 8 * n,
                tpot_allowed_ms=allowed_ms * (1 + ripple * (-1) ** n),
            )  # fmt: skip
            chosen = controller.decide(state)
            changes += n >= 30 and chosen != clocks
            clocks = chosen
        assert changes <= 2, f"{changes} changes in 30 steps at {allowed_ms:.3g} ms"


def check_thermal_margin(make: Make, model: BoardModel) -> None:
    """From 90 % of the limit on it draws less than at most, at the limit the least."""
    limit_c = model.thermal.limit_c
    drawn = []
    for temperature_c in (0.5 * limit_c, 0.95 * limit_c, limit_c):
        controller = make()
        controller.begin(GOALS)
        state = replace(_decoding(model), temperature_c=temperature_c, tpot_allowed_ms=1e-3)
        drawn.append(float(model.decode_w_S[model.index_of(controller.decide(state))]))
    assert drawn[0] == float(model.decode_w_S[model.fastest])
    assert drawn[1] < drawn[0] and drawn[2] == float(model.decode_w_S.min())


CHECKS = (check_clocks, check_deterministic, check_never_blocks, check_states_untouched)


def _decoding(model: BoardModel) -> ControlState:
    return ControlState(
        phase="decode", prompt_tokens=100, tokens_done=1, tokens_left=100.0, ttft_left_ms=0.0,
        tpot_allowed_ms=100.0, clocks=model.clocks(model.fastest), temperature_c=30.0,
    )  # fmt: skip


def _walk(controller: Controller, model: BoardModel) -> list[dict[str, float]]:
    """Choices over all states, each followed by its step."""
    chosen = []
    for n, state in enumerate(states(model)):
        if n % 5 == 0:
            controller.begin(GOALS)
        clocks = controller.decide(state)
        again = controller.decide(replace(state))
        assert again.keys() == clocks.keys()
        chosen.append(clocks)
        if state.phase != "idle":
            controller.seen(
                Step(
                    phase=state.phase, tokens=8, duration_ms=50.0 + n, clocks=clocks,
                    energy_j=None if n % 3 == 0 else 1.0 + n / 10, label="modelled",
                    temperature_c=state.temperature_c,
                )
            )  # fmt: skip
    return chosen


@contextmanager
def _no_waiting() -> Iterator[None]:
    def refused(*_args: Any, **_kw: Any) -> Any:
        raise AssertionError("a controller waits for something")

    with (
        patch.object(builtins, "open", refused),
        patch.object(time, "sleep", refused),
        patch.object(socket, "socket", refused),
    ):
        yield
