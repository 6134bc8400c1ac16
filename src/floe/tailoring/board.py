"""Which machine and engine a figure is of, and the refusal of another's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floe.core.errors import BadPlan


@dataclass(frozen=True, kw_only=True)
class Board:
    """A machine (cpu, cores, architecture, board where it has a name) and its engine's build."""

    machine: Mapping[str, str]
    engine: str


def refuse_other(what: str, made_for: Board, here: Board, *, any_board: bool = False) -> None:
    """Nothing when `made_for` is this board, or `any_board` is said.

    Raises:
        BadPlan: another machine or another build of the engine, with what differs.
    """
    if any_board:
        return
    keys = sorted({*made_for.machine, *here.machine})
    differs = [
        f"{key} {made_for.machine.get(key, 'unknown')!r}, here {here.machine.get(key, 'unknown')!r}"
        for key in keys
        if made_for.machine.get(key) != here.machine.get(key)
    ]
    if made_for.engine != here.engine:
        differs.append(f"engine {made_for.engine!r}, here {here.engine!r}")
    if differs:
        raise BadPlan(
            f"{what} was made on another board ({'; '.join(differs)}). Profile here with: floe "
            "tailor profile; or take it as it is with --any-board"
        )
