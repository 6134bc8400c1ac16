"""What the adapter cache shows: rows, counters, and faults known before a lease."""

from __future__ import annotations

from typing import Any

from floe.adapters.entries import Entry
from floe.adapters.figures import Figures
from floe.adapters.prefetch import Foresight
from floe.adapters.recency import GuardedPolicy
from floe.adapters.slots import Counters, Row, Slot, State, Tier
from floe.adapters.table import Table
from floe.adapters.tiers import Tiers

_TOTALS = (
    *("hits", "misses", "coalesced", "evictions", "failures", "mixes"),
    *("loads", "reloads", "refusals", "dropped", "trimmed", "fetches"),
)


def counted(
    table: Table[Any],
    figures: Figures,
    foresight: Foresight,
    policy: GuardedPolicy,
    tiers: Tiers,
    *,
    waiting: int,
    at_s: float,
) -> Counters:
    """Totals and gauges at this moment."""
    slots = list(table.slots.values())
    held = [s for s in slots if s.pins]
    evictions, reloads = figures.per_minute(at_s)
    host_bytes, host_hits = tiers.host
    return Counters(
        **{name: figures.count[name] for name in _TOTALS},
        load_ms=figures.load_ms,
        budget_bytes=table.budget_bytes,
        resident_bytes=table.used_bytes,
        pinned_bytes=sum(s.n_bytes for s in slots if s.pins or s.is_fixed),
        resident=sum(s.handle is not None for s in slots),
        leased=sum(s.pins for s in held),
        active=len(held),
        pinned=sum(s.is_fixed and s.handle is not None for s in slots),
        leased_bytes=sum(s.n_bytes for s in held),
        waiting=waiting,
        prefetches=foresight.total("begun"),
        prefetch_used=foresight.total("used"),
        prefetch_wasted=foresight.total("wasted"),
        policy_faults=policy.faults,
        evictions_per_min=evictions,
        reloads_per_min=reloads,
        host_bytes=host_bytes,
        host_hits=host_hits,
    )


def row(entry: Entry, slot: Slot[Any] | None, *, reason: str, tier: Tier, table: Table[Any]) -> Row:
    """An adapter of the store as it is now. `tier`: where it lies outside the engine."""
    manifest = entry.stored.manifest if entry.stored else None
    size = slot.n_bytes if slot else manifest.file_bytes if manifest else 0
    state: State = "failed" if reason else "registered"
    if slot is not None:
        state = "loading" if slot.handle is None else "ready"
    return Row(
        name=entry.name,
        digest=manifest.digest if manifest else "",
        tier="memory" if slot and slot.handle is not None else tier,
        state=state,
        reason=reason,
        pins=slot.pins if slot else 0,
        n_bytes=size,
        rank=manifest.rank if manifest else 0,
        fit=table.budget_bytes // size if size else 0,
        last_used_s=slot.last_used_s if slot else None,
        is_pinned=manifest is not None and manifest.digest in table.fixed,
    )
