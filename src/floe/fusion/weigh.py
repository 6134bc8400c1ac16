"""What a weight is decided from, place by place, and the fixed one. V = the SLM's real ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice
from floe.fusion.align import Mapped


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What holds for a whole request: the router's share for its first adapter, masked or not."""

    route_confidence: float = 0.0
    masked: bool = False


@dataclass(frozen=True, kw_only=True)
class Network:
    """The road to the cloud. All zeros, the default, means no trouble.

    Only these depend on time; a stream that must be drawn again the same leaves them alone.
    """

    age_ms: float = 0.0
    round_trip_ms: float = 0.0
    loss: float = 0.0


QUIET = Network()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One place: the SLM's log-probabilities (V,) and the cloud's advice on the SLM's ids."""

    log_q_V: NDArray[np.float32]
    advice: Advice
    mapped: Mapped
    standing: Standing = field(default_factory=Standing)
    network: Network = QUIET


Weigh = Callable[[Seen], float]
"""The SLM's share w in [0, 1] at a place; the same for the same `Seen`."""


def fixed(weight: float) -> Weigh:
    """The same weight everywhere.

    Raises:
        ValueError: outside [0, 1].
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight must be between 0 and 1, not {weight}")
    return lambda _: weight
