"""What a user asks for: messages or a prompt, and how to draw the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
DvfsMode = Literal["performance", "balanced", "saver"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; unset means off (bug-log A56).

    `fits_room`: nobody asked for `max_tokens`, so it shrinks to the room the prompt leaves.
    """

    max_tokens: int = 256
    fits_room: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AdapterScale:
    """An adapter asked for by name, with its strength (1.0 = as trained)."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """How long one request may wait, in milliseconds; None = as configured, or without end.

    A token waits for the cloud at most `token_ms`, the first one `first_token_ms`. The answer
    ends, as it is, `deadline_ms` after the request came.
    """

    token_ms: float | None = None
    first_token_ms: float | None = None
    deadline_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class PowerWish:
    """What one request asks of power; None = as configured.

    `latency_slo_ms` is a goal for each token after the first, `power_budget_w` what may be drawn.
    """

    latency_slo_ms: float | None = None
    power_budget_w: float | None = None
    dvfs_mode: DvfsMode | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request; exactly one of `messages` and `prompt` is set.

    `model` is "auto" (routed), the base model's name, or an adapter's name. `lora` is an
    explicit mix and wins over `model`. `cloud` False keeps the whole request on the device.
    """

    id: str
    model: str = "auto"
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    lora: tuple[AdapterScale, ...] = ()
    top_log_probs: int = 0
    cloud: bool = True
    budgets: Budgets = field(default_factory=Budgets)
    power: PowerWish = field(default_factory=PowerWish)
    tenant: str = "default"

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Every text of the user's as (field path, text), for the privacy gate."""
        if self.prompt is not None:
            return (("prompt", self.prompt),)
        return tuple((f"messages[{i}].content", m.content) for i, m in enumerate(self.messages))

    def topic(self) -> str:
        """The text the router looks at: the prompt or the last user message."""
        if self.prompt is not None:
            return self.prompt
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")
