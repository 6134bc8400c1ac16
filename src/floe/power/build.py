"""Configuration to a running listener, with the clocks held while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from floe.core.errors import BadConfig, FloeError
from floe.core.request import DvfsMode
from floe.core.sections import PowerConfig
from floe.power.base import Controller, Knobs, Label
from floe.power.boards.catalogue import fitted
from floe.power.boards.generic import generic
from floe.power.boards.model import BoardModel
from floe.power.controllers.dqn import Dqn
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.policy import Policy, load, shipped
from floe.power.controllers.rules import RULES, rule
from floe.power.hold import held
from floe.power.knobs.probe import open_knobs
from floe.power.length import shipped_length_model
from floe.power.listener import Lengths, Listener, Sensors
from floe.power.meters.battery import charge_of
from floe.power.meters.probe import open_meter
from floe.power.meters.thermal import temperatures
from floe.power.pilot import Pilot
from floe.power.sparing import Sparing
from floe.power.switch import measure_switch_ms

_log = logging.getLogger(__name__)
POWER = "power"
"""The folder in FLOE_HOME: the lease, and a policy of one's own."""
POLICY = "policy.json"
_TRIES = 2
MODES: tuple[DvfsMode, ...] = ("performance", "balanced", "saver")


@dataclass(frozen=True, kw_only=True)
class Power:
    """The part as the server sees it."""

    listener: Listener
    spare: Sparing
    info: Mapping[str, str]


@contextmanager
def open_power(
    config: PowerConfig, *, home: Path, has_cloud: bool, eos_ids: Sequence[int] = (),
    root: Path = Path("/"),
) -> Iterator[Power]:  # fmt: skip
    """The listener as configured; clocks are held inside the block and put back at its end.

    Raises:
        BadConfig: no such board, or no policy for it.
        Busy: another process holds the clocks.
    """
    knobs = open_knobs(config.knobs, root=root)
    meter = open_meter(config.meter, root=root)
    try:
        with held(knobs, folder=home / POWER):
            seen = open_knobs("auto", root=root) if config.knobs == "noop" else knobs
            pilot = _pilot(config, knobs, seen, home=home)
            listener: Listener
            spare = Sparing(
                config, has_cloud=has_cloud, mean_tokens=lambda: listener.mean_tokens,
                battery=lambda: listener.charge,
            )  # fmt: skip
            learned = pilot is not None and config.controller == "learned"
            listener = Listener(
                config=config,
                meter=meter,
                knobs=seen,
                pilot=pilot,
                spare=spare,
                sensors=Sensors(
                    temperatures=lambda: temperatures(root), charge=lambda: charge_of(root)
                ),
                lengths=(
                    Lengths(model=shipped_length_model(), eos_ids=eos_ids) if learned else None
                ),
            )
            info = {
                "meter": meter.name, "label": meter.label, "knobs": knobs.name,
                "controller": config.controller if pilot is not None else "off",
                "board": config.board or "generic",
            }  # fmt: skip
            if pilot is not None and pilot.fault:
                _log.warning("clocks are not set, only advised: %s", pilot.fault)
            try:
                yield Power(listener=listener, spare=spare, info=info)
            finally:
                listener.close()
    finally:
        meter.close()


def own_policy(home: Path) -> Path:
    """Where `floe power train` leaves a policy, and the server finds it."""
    return home / POWER / POLICY


def open_policy(home: Path) -> Policy:
    """One's own policy, else the shipped one.

    Raises:
        BadConfig: a file that is no policy.
    """
    path = own_policy(home)
    if path.is_file():
        return load(path, features=N_FEATURES, outputs=N_OUTPUTS)
    return shipped("policy", features=N_FEATURES, outputs=N_OUTPUTS)


def controller_for(
    name: str, model: BoardModel, *, home: Path, mode: DvfsMode = "balanced", board: str = ""
) -> Controller:
    """The controller of that name for a board.

    Raises:
        BadConfig: no such controller, or it needs a network that nobody trained for the board.
    """
    if name == "learned":
        return Learned(model, open_policy(home), mode=mode)
    if name not in (*RULES, "dqn"):
        known = ", ".join((*RULES, "learned", "dqn"))
        raise BadConfig(f"no controller {name!r}; known: {known}", param="power.controller")
    if name != "dqn":
        return rule(name, model)
    try:
        return Dqn(model, shipped(f"dqn-{board}", features=N_FEATURES, outputs=model.n_settings))
    except FileNotFoundError:
        raise BadConfig(
            f"no Q network was trained for the board {board or 'generic'!r}: use learned, or "
            "scripts/train_dqn.py",
            param="power.controller",
        ) from None


def _pilot(config: PowerConfig, knobs: Knobs, seen: Knobs, *, home: Path) -> Pilot | None:
    """None where nobody is to choose, or there is nothing to choose; `seen` are clocks to read."""
    if config.controller == "off":
        return None
    if not config.board and not seen.domains:
        _log.warning("power.controller has nothing to do: this machine tells of no clocks")
        return None
    model = fitted(config.board).model if config.board else generic(seen.domains)
    model, switch_label = _with_switch_cost(model, knobs)
    made: dict[DvfsMode, Controller] = {
        mode: controller_for(config.controller, model, home=home, mode=mode, board=config.board)
        for mode in MODES
    }
    balanced = made["balanced"]
    for one in made.values():
        if isinstance(one, Learned) and isinstance(balanced, Learned):
            one.costs = balanced.costs  # what one mode learns of the board holds for all
    if not isinstance(balanced, Learned):
        made["performance"] = rule("performance", model)
    return Pilot(model=model, controllers=made, knobs=knobs, switch_label=switch_label)


def _with_switch_cost(model: BoardModel, knobs: Knobs) -> tuple[BoardModel, Label]:
    """The model with what a change of clocks really costs here, where that can be tried."""
    try:
        measured = measure_switch_ms(knobs, repeats=_TRIES)
    except FloeError as error:  # the pilot will be refused, too, and go on with advice
        _log.warning("the cost of a change of clocks is assumed: %s", error.message)
        return model, "modelled"
    if not measured:
        return model, "modelled"
    return replace(model, switch_ms=max(measured.values())), "measured"
