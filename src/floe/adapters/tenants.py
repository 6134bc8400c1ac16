"""Tenants in one memory: guaranteed bytes, and a fair order of waiting.

Partition. A tenant's protected adapters are those it used last, as far as they fit its guaranteed
bytes; no other tenant's request evicts them. Leases of others are admitted only while every
tenant's guarantee could still be met. What is guaranteed and not used may be borrowed, unpinned.

Order of waiting requests:
1. One that was overtaken `max_overtaken` times goes first, and nobody passes it (bug-log A67).
2. A higher priority goes first.
3. Among equals, tenants take turns in proportion to their shares, counted in bytes loaded
   (start-time fair queueing); within a tenant, in order of arrival.
A request that cannot go yet does not hold up those behind it until rule 1 applies. With
`max_overtaken` 0 the order is that of arrival.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from floe.adapters.slots import H, Slot
from floe.core.errors import BadConfig
from floe.core.sections import TenantConfig

_PLAIN = TenantConfig()


class Partition:
    """Who may take whose bytes."""

    def __init__(self, tenants: Mapping[str, TenantConfig], *, budget_bytes: int) -> None:
        """Raises BadConfig for guarantees that cannot be kept, or a share that is no weight."""
        for name, tenant in tenants.items():
            check_tenant(name, tenant)
        self._guaranteed = {n: t.guaranteed_bytes for n, t in tenants.items() if t.guaranteed_bytes}
        if (total := sum(self._guaranteed.values())) > budget_bytes:
            raise BadConfig(
                f"the tenants' guaranteed_bytes sum to {total}, adapters.budget_bytes is "
                f"{budget_bytes}: raise the budget or lower the guarantees",
                param="tenants",
            )

    @property
    def guarantees(self) -> dict[str, int]:
        """Guaranteed bytes by tenant, where there are any."""
        return dict(self._guaranteed)

    def guaranteed_bytes(self, tenant: str) -> int:
        """What nobody else can take from the tenant."""
        return self._guaranteed.get(tenant, 0)

    def reserved_bytes(self, tenant: str) -> int:
        """What is guaranteed to the others."""
        return sum(g for name, g in self._guaranteed.items() if name != tenant)

    def protected(self, slots: Iterable[Slot[Any]], *, against: str) -> set[str]:
        """Keys that a request of tenant `against` must not evict."""
        kept: set[str] = set()
        if not (others := self._guaranteed.keys() - {against}):
            return kept
        slots = list(slots)
        for name in others:
            room = self._guaranteed[name] - sum(s.n_bytes for s in slots if _charged(s) == name)
            mine = [s for s in slots if s.is_evictable and name in s.uses]
            for slot in sorted(mine, key=lambda s: s.uses[name], reverse=True):
                if slot.n_bytes <= room:
                    kept.add(slot.key)
                    room -= slot.n_bytes
        return kept

    def can_pin(
        self,
        slots: Iterable[Slot[Any]],
        wanted: Sequence[Slot[Any]],
        *,
        tenant: str,
        room_bytes: int,
    ) -> bool:
        """Whether all guarantees can still be met once `tenant` holds `wanted` too.

        A held adapter is charged to the tenant that held it first; fixed ones to nobody, their
        bytes are not in `room_bytes`. What is held already, and what lies within the tenant's own
        guarantee, may always be held: a charge that passed on to somebody else does not bar it.
        """
        held: defaultdict[str, int] = defaultdict(int)
        taken = set()
        for slot in slots:
            if slot.pins and not slot.is_fixed:
                held[_charged(slot)] += slot.n_bytes
                taken.add(slot.key)
        more = sum(s.n_bytes for s in wanted if s.key not in taken and not s.is_fixed)
        held[tenant] += more
        if not more or held[tenant] <= self.guaranteed_bytes(tenant):
            return True
        names = held.keys() | self._guaranteed.keys()
        return sum(max(held[n], self.guaranteed_bytes(n)) for n in names) <= room_bytes


def check_tenant(name: str, tenant: TenantConfig) -> None:
    """Raise BadConfig for numbers that mean nothing (bug-log F08)."""
    if not (math.isfinite(tenant.share) and tenant.share > 0):
        raise BadConfig(f"tenants.{name}.share must be above 0", param=f"tenants.{name}.share")
    if tenant.guaranteed_bytes < 0:
        raise BadConfig(
            f"tenants.{name}.guaranteed_bytes must be 0 or more",
            param=f"tenants.{name}.guaranteed_bytes",
        )


def _charged(slot: Slot[Any]) -> str:
    return next(iter(slot.holders), "")


@dataclass(kw_only=True, eq=False)
class Ticket(Generic[H]):
    """A lease that waits; `ready` gives its pinned slots.

    `blocked_at_s`: since when held adapters leave no room for it (the loop's seconds).
    `start` is its tag in the fair order; `is_known`: it was seen before whether it fits.
    """

    wanted: list[Slot[H]]
    tenant: str
    ready: asyncio.Future[list[Slot[H]]]
    wait_s: float
    is_counted: bool = True
    is_known: bool = False
    number: int = 0
    start: float = 0.0
    overtaken: int = 0
    blocked_at_s: float | None = None


class FairQueue(Generic[H]):
    """Waiting tickets in the order of this file's rule."""

    def __init__(self, tenants: Mapping[str, TenantConfig], *, max_overtaken: int) -> None:
        self._tenants, self._max = tenants, max_overtaken
        self._waiting: dict[int, Ticket[H]] = {}
        self._arrived, self._now = 0, 0.0
        self._finish: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Ticket[H]]:
        """First come first."""
        return iter(list(self._waiting.values()))

    def add(self, ticket: Ticket[H]) -> None:
        """The ticket takes its place."""
        self._arrived += 1
        ticket.number = self._arrived
        tenant = self._tenants.get(ticket.tenant, _PLAIN)
        cost = max(1, sum(slot.n_bytes for slot in ticket.wanted)) / tenant.share
        ticket.start = max(self._now, self._finish.get(ticket.tenant, 0.0))
        self._finish[ticket.tenant] = ticket.start + cost
        self._waiting[ticket.number] = ticket

    def remove(self, ticket: Ticket[H]) -> None:
        """It waits no longer, or never did."""
        self._waiting.pop(ticket.number, None)

    def admitted(self, ticket: Ticket[H], *, loads: bool) -> None:
        """It goes: those before it are overtaken if it loads, or holds what they need."""
        self.remove(ticket)
        if loads:
            self._now = max(self._now, ticket.start)
        for other in self._waiting.values():
            earlier = not ticket.number or other.number < ticket.number
            if earlier and (loads or other.blocked_at_s is not None):
                other.overtaken += 1

    def ordered(self) -> list[Ticket[H]]:
        """Who goes first."""
        return sorted(self._waiting.values(), key=self._rank)

    def is_overdue(self, ticket: Ticket[H]) -> bool:
        """Whether nobody may pass it any more."""
        return ticket.overtaken >= self._max

    @property
    def is_barred(self) -> bool:
        """Whether somebody waits for held bytes and must not be passed any more."""
        return any(t.blocked_at_s is not None and self.is_overdue(t) for t in self)

    def _rank(self, ticket: Ticket[H]) -> tuple[float, ...]:
        if self.is_overdue(ticket):
            return (0, ticket.number)
        priority = self._tenants.get(ticket.tenant, _PLAIN).priority
        return (1, -priority, ticket.start, ticket.number)
