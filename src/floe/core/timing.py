"""What the engine's turns took, and what an answer tells of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from floe.core.request import Request


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """One turn of the engine: `tokens` fed for `sessions`, under `adapters` adapters each.

    A turn that feeds any part of a prompt is "prefill". `ended_s` is when it ended, on the
    monotonic clock.
    """

    phase: Literal["prefill", "decode"]
    tokens: int
    duration_ms: float
    sessions: int
    adapters: int
    ended_s: float


OnStep = Callable[[StepTiming], None]


def unheard(step: StepTiming) -> None:
    """Nobody listens to the engine's turns."""
    del step


class RequestWatch(Protocol):
    """Hears how one answer goes on. Called on the event loop: every call returns at once."""

    def log_probs(self, log_probs_V: Any) -> None:
        """The SLM's log-probabilities (V,) for a next token; never written to afterwards."""
        ...

    def drawn(self) -> None:
        """Another token of the answer."""
        ...

    def ended(self) -> None:
        """The answer is over, however it ended."""
        ...


class Unwatched:
    """Nobody listens to answers."""

    def log_probs(self, log_probs_V: Any) -> None:
        """Nothing."""

    def drawn(self) -> None:
        """Nothing."""

    def ended(self) -> None:
        """Nothing."""


class Watch(Protocol):
    """Told of each request when its prompt is about to be read."""

    def __call__(
        self, request: Request, *, prompt_tokens: int, adapters: int, came_s: float
    ) -> RequestWatch:
        """`came_s`: when it came, on the monotonic clock."""
        ...


def unwatched(
    request: Request, *, prompt_tokens: int, adapters: int, came_s: float
) -> RequestWatch:
    """A `Watch` of nobody."""
    del request, prompt_tokens, adapters, came_s
    return Unwatched()
