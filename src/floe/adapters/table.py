"""The books of the engine's memory: which slots there are, who must stay, who may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic

from floe.adapters.recency import GuardedPolicy
from floe.adapters.slots import H, Slot
from floe.adapters.tenants import Partition


class Table(Generic[H]):
    """Slots by key. `fixed`: bytes that configuration reserves, by digest.

    `lost_bytes` could not be freed, so they still count.
    """

    def __init__(self, *, budget_bytes: int, policy: GuardedPolicy, partition: Partition) -> None:
        self.budget_bytes = budget_bytes
        self._policy, self._partition = policy, partition
        self.slots: dict[str, Slot[H]] = {}
        self.fixed: dict[str, int] = {}
        self.lost_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of everything in memory or on its way."""
        return self.lost_bytes + sum(slot.n_bytes for slot in self.slots.values())

    def reserved_bytes(self, tenant: str) -> int:
        """What is pinned by configuration or guaranteed to other tenants."""
        return sum(self.fixed.values()) + self._partition.reserved_bytes(tenant)

    def limit_bytes(self, wanted: Sequence[Slot[H]], *, tenant: str) -> int:
        """The most that a lease of `wanted` may hold when it is alone."""
        keys = {slot.key for slot in wanted}
        fixed = sum(n for key, n in self.fixed.items() if key not in keys)
        return self.budget_bytes - self.lost_bytes - fixed - self._partition.reserved_bytes(tenant)

    def can_pin(self, wanted: Sequence[Slot[H]], *, tenant: str) -> bool:
        """Whether holding `wanted` leaves everybody else what is theirs."""
        room = self.budget_bytes - self.lost_bytes - sum(self.fixed.values())
        here = [self.slots.get(slot.key, slot) for slot in wanted]
        return self._partition.can_pin(self.slots.values(), here, tenant=tenant, room_bytes=room)

    def missing(self, wanted: Sequence[Slot[H]]) -> list[Slot[H]]:
        """Those that are not in the table."""
        return [slot for slot in wanted if slot.key not in self.slots]

    def victims(
        self,
        wanted: Sequence[Slot[H]],
        *,
        tenant: str,
        at_s: float,
        keep: Collection[str] = (),
        last: Collection[str] = (),
    ) -> list[Slot[H]] | None:
        """Slots whose bytes are needed for `wanted`; None if they do not suffice.

        Never any of `keep`; of `last` only when nothing else is left.
        """
        need = sum(s.n_bytes for s in self.missing(wanted)) + self.used_bytes - self.budget_bytes
        if need <= 0:
            return []
        barred = self._partition.protected(self.slots.values(), against=tenant)
        barred |= {slot.key for slot in wanted} | set(keep)
        free = {k: s.n_bytes for k, s in self.slots.items() if s.is_evictable and k not in barred}
        if sum(free.values()) < need:
            return None
        first = {k: n for k, n in free.items() if k not in last}
        keys = self._policy.victims(need, first, at_s=at_s)
        need -= sum(free[key] for key in keys)
        rest = {k: n for k, n in free.items() if k in last}
        keys += self._policy.victims(need, rest, at_s=at_s)
        return [self.slots[key] for key in keys]

    def check(self) -> None:
        """Raise RuntimeError if the books do not add up."""
        for key, slot in self.slots.items():
            if key != slot.key or slot.n_bytes < 0 or slot.task is None:
                raise RuntimeError(f"adapter cache: slot {key[:12]} is inconsistent")
            if slot.pins < 0 or slot.pins != sum(slot.holders.values()):
                raise RuntimeError(f"adapter cache: slot {key[:12]} has a wrong count of leases")
            if slot.task.done() and slot.handle is None:
                raise RuntimeError(f"adapter cache: slot {key[:12]} failed and was not removed")
            if slot.ahead and slot.pins:
                raise RuntimeError(f"adapter cache: slot {key[:12]} is used and counts as unused")
            if slot.is_doomed and slot.is_free:
                raise RuntimeError(f"adapter cache: slot {key[:12]} was forgotten and is there")
        if self.used_bytes > self.budget_bytes:
            raise RuntimeError("adapter cache: resident bytes exceed the budget")
