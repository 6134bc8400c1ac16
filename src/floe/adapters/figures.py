"""What the adapter cache counts: totals, rates, load times, and each tenant's share of them."""

from __future__ import annotations

import bisect
import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

from floe.adapters.slots import LoadTimes, TenantFigures, Tier

UPPER_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0)
RATE_WINDOW_S = 300.0
SOON_S = 60.0
"""A load this soon after the eviction of the same adapter is a reload."""

_NEW_SHARE = 0.3
_MS_PER_BYTE: dict[Tier, float] = {"host": 1.5e-6, "disk": 2.5e-6, "remote": 2.5e-5}
_OVERHEAD_MS = 0.5
_MOST_KNOWN = 10_000


@dataclass(kw_only=True)
class _Tenant:
    hits: int = 0
    misses: int = 0
    refusals: int = 0
    wait_ms: float = 0.0
    longest_wait_ms: float = 0.0


@dataclass(kw_only=True)
class _Known:
    n_bytes: int
    tier: Tier = "disk"
    ms: float | None = None


class Figures:
    """Books of one cache. Times are seconds of one clock that does not go back."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.load_ms = 0.0
        self._buckets = [0] * (len(UPPER_MS) + 1)
        self._per_byte = dict(_MS_PER_BYTE)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._evicted: OrderedDict[str, float] = OrderedDict()
        self._evictions: deque[float] = deque()
        self._reloads: deque[float] = deque()
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)

    def seen(self, key: str, n_bytes: int) -> None:
        """The adapter's size."""
        self._known.setdefault(key, _Known(n_bytes=n_bytes)).n_bytes = n_bytes
        self._known.move_to_end(key)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def asked(self, tenant: str, *, hit: bool) -> None:
        """An adapter was asked for."""
        mine = self._tenants[tenant]
        if hit:
            mine.hits += 1
        else:
            mine.misses += 1

    def refused(self, tenant: str) -> None:
        """A lease got no room."""
        self.count["refusals"] += 1
        self._tenants[tenant].refusals += 1

    def waited(self, tenant: str, ms: float) -> None:
        """A lease was given after so long."""
        mine = self._tenants[tenant]
        mine.wait_ms += ms
        mine.longest_wait_ms = max(mine.longest_wait_ms, ms)

    def evicted(self, key: str, at_s: float) -> None:
        """An adapter had to make room."""
        self.count["evictions"] += 1
        self._evictions.append(at_s)
        self._evicted[key] = at_s
        self._evicted.move_to_end(key)
        while len(self._evicted) > _MOST_KNOWN:
            self._evicted.popitem(last=False)

    def load_began(self, key: str, at_s: float) -> None:
        """A load, which is a reload if the adapter has only just gone (bug-log F13)."""
        gone_s = self._evicted.pop(key, -math.inf)
        if at_s - gone_s <= SOON_S:
            self.count["reloads"] += 1
            self._reloads.append(at_s)

    def loaded(self, key: str, n_bytes: int, *, tier: Tier, ms: float) -> None:
        """A load that succeeded, measured."""
        self.count["loads"] += 1
        self.load_ms += ms
        self._buckets[bisect.bisect_left(UPPER_MS, ms)] += 1
        self.seen(key, n_bytes)
        known = self._known[key]
        same = known.ms is not None and known.tier == tier
        known.ms = _blend(known.ms, ms) if same and known.ms is not None else ms
        known.tier = tier
        if n_bytes:
            rate = max(0.0, ms - _OVERHEAD_MS) / n_bytes
            self._per_byte[tier] = _blend(self._per_byte.get(tier, rate), rate)

    def fetched(self, n_bytes: int, ms: float) -> None:
        """A file came from the remote to the disk."""
        self.count["fetches"] += 1
        self._per_byte["remote"] = _blend(self._per_byte["remote"], ms / max(1, n_bytes))

    def forget(self, key: str) -> None:
        """The adapter is gone for good."""
        self._known.pop(key, None)
        self._evicted.pop(key, None)

    def estimate_ms(self, key: str, *, tier: Tier) -> float:
        """What a load costs: as measured from that tier, else by its bytes, else on average."""
        known = self._known.get(key)
        if known is None:
            loads = self.count["loads"]
            return self.load_ms / loads if loads else 5.0
        if known.ms is not None and known.tier == tier:
            return known.ms
        return _OVERHEAD_MS + known.n_bytes * self._per_byte.get(tier, _MS_PER_BYTE["disk"])

    def per_minute(self, at_s: float) -> tuple[float, float]:
        """Evictions and reloads a minute, over the last RATE_WINDOW_S seconds."""
        for times in (self._evictions, self._reloads):
            while times and times[0] < at_s - RATE_WINDOW_S:
                times.popleft()
        minutes = RATE_WINDOW_S / 60
        return len(self._evictions) / minutes, len(self._reloads) / minutes

    def load_times(self) -> LoadTimes:
        """The histogram."""
        return LoadTimes(
            upper_ms=(*UPPER_MS, math.inf), counts=tuple(self._buckets), sum_ms=self.load_ms
        )

    def by_tenant(
        self, resident: dict[str, int], guaranteed: dict[str, int]
    ) -> dict[str, TenantFigures]:
        """Every tenant that asked or is guaranteed something."""
        return {
            name: TenantFigures(
                **vars(self._tenants.get(name, _Tenant())),
                resident_bytes=resident.get(name, 0),
                guaranteed_bytes=guaranteed.get(name, 0),
            )
            for name in sorted(self._tenants.keys() | guaranteed.keys())
        }


def _blend(old: float, new: float) -> float:
    return old + _NEW_SHARE * (new - old)
