"""How a device trains, and what it tells while it does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from floe.core.errors import BadConfig

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
Mode = Literal["both", "freeze-a", "alternate"]
Space = Literal["products", "factors"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What is the same for all devices of a federation.

    `mode`: "both" factors, "freeze-a" = B alone over an A that all devices share, "alternate" = B
    in even rounds and A in odd ones. `a_seed` draws the shared A and is one for the federation.
    A step sees `batch` x `accumulate` examples. `proximal` holds the adapter near its start, by
    distance of "products" (what it does) or of "factors".
    """

    targets: tuple[str, ...] = TARGETS
    mode: Mode = "both"
    steps: int = 20
    batch: int = 4
    accumulate: int = 1
    learning_rate: float = 5e-4
    warmup_steps: int = 2
    clip_norm: float | None = 1.0
    proximal: float = 0.0
    proximal_space: Space = "products"
    max_tokens: int = 256
    a_seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        """Raises BadConfig for a number that is not finite or out of range (bug-log C11)."""
        for name in ("steps", "batch", "accumulate", "max_tokens", "threads"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} must be 1 or more", param=name)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise BadConfig("learning_rate must be finite and above 0", param="learning_rate")
        if not (math.isfinite(self.proximal) and self.proximal >= 0.0):
            raise BadConfig("proximal must be finite and not below 0", param="proximal")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise BadConfig("clip_norm must be above 0, or None", param="clip_norm")


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """After a step: `loss` is of its own batch, None where it is not to be shown.

    `paused` is a reason for waiting, and no step was done then. `step_s` is the mean so far.
    """

    step: int
    steps: int
    loss: float | None = None
    step_s: float = 0.0
    paused: str = ""
