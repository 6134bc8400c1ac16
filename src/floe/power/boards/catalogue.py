"""The boards by name. Every figure of theirs is modelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from floe.core.errors import BadConfig
from floe.power.boards.accelerator import accelerated
from floe.power.boards.gpu_limit import gpu_limit
from floe.power.boards.jetson import orin_nano, orin_nx
from floe.power.boards.model import Fitted
from floe.power.boards.odroid import odroid_xu3

BOARDS: Mapping[str, Callable[[], Fitted]] = {
    "orin-nano-super": orin_nano,
    "orin-nx": orin_nx,
    "odroid-xu3": odroid_xu3,
    "a40": lambda: gpu_limit("a40"),
    "v100": lambda: gpu_limit("v100"),
    "orin-nano-super-lora-unit": lambda: accelerated("orin-nano"),
    "orin-nx-lora-unit": lambda: accelerated("orin-nx"),
}


def fitted(name: str) -> Fitted:
    """The board of that name, with how well it fits.

    Raises:
        BadConfig: no such board.
    """
    if name not in BOARDS:
        raise BadConfig(f"no board {name!r}; known: {', '.join(BOARDS)}", param="board")
    return BOARDS[name]()
