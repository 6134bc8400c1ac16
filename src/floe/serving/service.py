"""What the HTTP door needs from the rest of Floe: one record of values and callables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from floe.core.config import ServeConfig
from floe.core.request import Request
from floe.core.token import Event

State = Literal["registered", "loading", "ready", "failed"]


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A name that `model` accepts, as /v1/models shows it.

    `state` is what the engine says, never what was asked of it (bug-log A34); `reason` belongs
    to "failed". `parent` is the base an adapter stands on. `created_s` is a Unix time.
    """

    id: str
    kind: Literal["base", "adapter", "auto", "embedding"]
    created_s: int = 0
    root: str | None = None
    parent: str | None = None
    digest: str | None = None
    state: State = "ready"
    reason: str = ""
    resident: bool | None = None
    pins: int | None = None
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """Text to vectors of `dimensions` numbers; `count_tokens` is for the usage figures."""

    name: str
    dimensions: int
    embed: Callable[[str], Sequence[float]]
    count_tokens: Callable[[str], int]


def nothing_wrong() -> str | None:
    """The answer of a part that is well."""
    return None


def no_counters() -> Mapping[str, float]:
    """The answer of a part that counts nothing."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything that `build_app` serves.

    `ready` and `alive` return None when all is well, else the reason; `alive` speaks of the
    engine's worker. `counters` feed /metrics: a name ending in `_total` is a counter, any other
    a gauge; the prefix `floe_` is added. `versions` is what /version shows. `api_key` None lets
    everybody in, and is refused for a host that is not loopback.
    """

    answer: Callable[[Request], AsyncGenerator[Event, None]]
    models: Callable[[], Sequence[ModelRecord]]
    config: ServeConfig = field(default_factory=ServeConfig)
    embedder: Embedder | None = None
    versions: Mapping[str, object] = field(default_factory=dict)
    ready: Callable[[], str | None] = nothing_wrong
    alive: Callable[[], str | None] = nothing_wrong
    counters: Callable[[], Mapping[str, float]] = no_counters
    api_key: str | None = field(default=None, repr=False)
    fingerprint: str | None = None
