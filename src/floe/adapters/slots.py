"""What the adapter cache is made of: slots, what it asks of others, what it tells of itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, Literal, Protocol, TypeVar

from floe.adapters.entries import Entry
from floe.adapters.mix import MixKey
from floe.core.adapter import StoredAdapter

H = TypeVar("H")
H_co = TypeVar("H_co", covariant=True)

State = Literal["registered", "loading", "ready", "failed"]
Tier = Literal["memory", "host", "disk", "remote", "none"]
Ahead = Literal["", "expected", "preferred", "predicted"]


class Store(Protocol):
    """Where adapters lie; `AdapterStore` is one."""

    def entries(self) -> tuple[Entry, ...]:
        """Every name, the broken ones too."""
        ...

    def find(self, name: str, digest: str) -> StoredAdapter:
        """The adapter with that content; raises BadAdapter."""
        ...

    def opened(self, stored: StoredAdapter) -> AbstractContextManager[Path]:
        """Its GGUF, checked before and after the block; raises BadAdapter."""
        ...

    def copy(self, stored: StoredAdapter, out: BinaryIO) -> None:
        """Write its GGUF to `out`, checked in the same reading; raises BadAdapter."""
        ...

    def tier(self, stored: StoredAdapter) -> Tier:
        """Where its file lies now: "disk" or "remote"."""
        ...

    def fetch(self, stored: StoredAdapter) -> None:
        """Bring its file from the remote to the disk; raises BadAdapter."""
        ...


class Mix(Protocol):
    """Where composed adapters lie; `MixCache` is one."""

    def has(self, key: MixKey) -> bool:
        """Whether it is composed already."""
        ...

    def composed(self, key: MixKey) -> AbstractContextManager[Path]:
        """Its GGUF, kept while the block runs; raises BadAdapter."""
        ...


class Load(Protocol[H_co]):
    """The engine's `load_adapter`."""

    def __call__(self, path: Path, /, *, key: str) -> H_co:
        """The handle of the adapter in `path`; raises BadAdapter."""
        ...


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Totals since the start, and gauges: resident, pinned, active, leased apart (bug-log A28).

    `resident` adapters are in memory, `pinned` ones by configuration, `active` ones are held by
    `leased` leases. `pinned_bytes` cannot be evicted now. `reloads` are loads soon after an
    eviction; as a rate, together with that of evictions, they tell thrashing (F13). `trimmed`
    mixes were too large together, `dropped` loads nobody waited for any more; `fetches` came
    from the remote.
    """

    hits: int
    misses: int
    coalesced: int
    evictions: int
    failures: int
    mixes: int
    load_ms: float
    budget_bytes: int
    resident_bytes: int
    pinned_bytes: int
    resident: int
    leased: int
    active: int = 0
    pinned: int = 0
    leased_bytes: int = 0
    waiting: int = 0
    loads: int = 0
    reloads: int = 0
    refusals: int = 0
    dropped: int = 0
    trimmed: int = 0
    fetches: int = 0
    prefetches: int = 0
    prefetch_used: int = 0
    prefetch_wasted: int = 0
    policy_faults: int = 0
    evictions_per_min: float = 0.0
    reloads_per_min: float = 0.0
    host_bytes: int = 0
    host_hits: int = 0


@dataclass(frozen=True, kw_only=True)
class TenantFigures:
    """One tenant's totals and gauges. `wait_ms`: how long its leases waited, summed."""

    hits: int = 0
    misses: int = 0
    refusals: int = 0
    wait_ms: float = 0.0
    longest_wait_ms: float = 0.0
    resident_bytes: int = 0
    guaranteed_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class LoadTimes:
    """A histogram of load times: `counts[i]` took at most `upper_ms[i]`, the last is infinite.

    Counts are per bucket, not cumulated.
    """

    upper_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """An adapter in the listing (A11, A23, A32, A34).

    `fit` says how many adapters of its size the budget holds. `last_used_s` is the time
    of its last lease, seconds since the epoch.
    """

    name: str
    digest: str
    tier: Tier
    state: State
    reason: str
    pins: int
    n_bytes: int
    rank: int
    fit: int
    last_used_s: float | None
    is_pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A file at one moment: what changes when somebody writes it."""

    path: Path
    state: tuple[int, int, int] | None

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The file at `path` now; a file that is not there has a stamp too."""
        try:
            status = path.stat()
        except OSError:
            return cls(path=path, state=None)
        return cls(path=path, state=(status.st_ino, status.st_size, status.st_mtime_ns))

    @property
    def is_current(self) -> bool:
        """Whether the file is still that one."""
        return Stamp.of(self.path) == self


@dataclass(frozen=True, kw_only=True)
class Broken:
    """Why an adapter could not be loaded, the file that this is true of, and until when.

    After `until_s` it is worth another try even if the file is the same.
    """

    reason: str
    stamp: Stamp
    until_s: float


@dataclass(kw_only=True, eq=False)
class Slot(Generic[H]):
    """One adapter or mix, resident or on its way; `parts` are the digests it is made of.

    `stamp` is the file as it was before it was read; None for a mix. `holders` counts leases by
    tenant, `uses` has each tenant's last use (seconds). `ahead` says why it was loaded before
    anybody asked, until somebody does. `is_fixed`: pinned by configuration. `trusted`: the store's
    `trust_stamp` when it was last asked whether the adapter may be served.
    """

    key: str
    name: str
    n_bytes: int
    parts: frozenset[str]
    open: Callable[[], AbstractContextManager[Path]]
    task: asyncio.Task[None] | None = None
    handle: H | None = None
    pins: int = 0
    is_doomed: bool = False
    last_used_s: float = 0.0
    stamp: Stamp | None = None
    where: Callable[[], Tier] = lambda: "disk"
    holders: Counter[str] = field(default_factory=Counter)
    uses: dict[str, float] = field(default_factory=dict)
    ahead: Ahead = ""
    is_fixed: bool = False
    trusted: object = None

    @property
    def is_free(self) -> bool:
        """Whether it is in memory and nobody holds it."""
        return self.pins == 0 and self.handle is not None

    @property
    def is_evictable(self) -> bool:
        """Whether it may be taken out of memory as far as leases and configuration go."""
        return self.is_free and not self.is_fixed

    @property
    def is_wanted(self) -> bool:
        """Whether a load of it that has not begun is still worth it."""
        return self.pins > 0 or (not self.is_doomed and (self.is_fixed or bool(self.ahead)))

    def pin(self, tenant: str, at_s: float) -> None:
        """One more lease."""
        self.pins += 1
        self.holders[tenant] += 1
        self.uses[tenant] = self.last_used_s = at_s

    def unpin(self, tenant: str, at_s: float) -> None:
        """One lease less."""
        self.pins -= 1
        self.holders[tenant] -= 1
        if not self.holders[tenant]:
            del self.holders[tenant]
        self.uses[tenant] = self.last_used_s = at_s
