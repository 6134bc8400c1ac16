"""What the HTTP door needs from the rest of Floe: one record of values and callables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from floe.core.request import Request
from floe.core.sections import ServeConfig, TenantConfig
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
    rank: int | None = None
    tier: str = ""
    n_bytes: int | None = None
    fit: int | None = None
    last_used_s: float | None = None
    is_pinned: bool = False


class AdapterAdmin(Protocol):
    """What the operator may do with adapters while the server runs."""

    async def load(self, name: str, path: str, *, replace: bool) -> None:
        """Put the adapter at `path`, inside the configured folder, into the store; all or nothing.

        Raises:
            Forbidden: no folder is configured. NotFound: nothing there that may be read.
            BadRequest: a name that is not allowed or taken. BadAdapter: it cannot be applied.
        """
        ...

    async def unload(self, name: str) -> None:
        """Take it out of the store; requests under way finish with it. Raises NotFound."""
        ...


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What somebody thought of one answer: thumbs up (1) or down (-1), a task's metric in [0, 1].

    None = not said.
    """

    request_id: str
    tenant: str
    thumbs: int | None = None
    metric: float | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number for /metrics with labels; a name ending in `_total` is a counter, else a gauge."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A histogram for /metrics: how many were at most each bound, in all, and their sum."""

    name: str
    bounds: Sequence[float]
    counts: Sequence[int]
    n: int
    total: float


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


async def nothing_to_start() -> None:
    """The start of a part that has none."""


def no_figures() -> Sequence[Figure | Spread]:
    """The answer of a part that measures nothing."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything that `build_app` serves.

    `ready` and `alive` return None when all is well, else the reason; `alive` speaks of the
    engine's worker. `counters` feed /metrics: a name ending in `_total` is a counter, any other
    a gauge; the prefix `floe_` is added. `versions` is what /version shows. `api_key` None lets
    everybody in, and is refused for a host that is not loopback. `figures` are further ones, with
    labels or buckets. `tenants` are the known ones besides "default", by name; each has a key in
    `tenant_keys`. `base_names` are the base model's. `admin` and `feedback` are None where the
    part behind them is not there; `feedback` says whether the router could still learn from it.
    `start` runs on the server's loop while requests are answered already; `notes` say what works
    less well than it should.
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
    figures: Callable[[], Sequence[Figure | Spread]] = no_figures
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    tenant_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    base_names: Collection[str] = ()
    start: Callable[[], Awaitable[None]] = nothing_to_start
    notes: Callable[[], Sequence[str]] = tuple
    admin: AdapterAdmin | None = None
    feedback: Callable[[Feedback], Awaitable[bool]] | None = None

    def may_use(self, tenant: str, adapter: str) -> bool:
        """Whether a tenant may use the adapter of that name."""
        known = self.tenants.get(tenant)
        return known is None or not known.adapters or adapter in known.adapters
