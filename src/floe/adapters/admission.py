"""Who gets room in the engine's memory, and when: tickets in, pinned slots out.

A lease whose adapters are all there is served at once. Any other waits as a ticket until it is its
turn (see `tenants`), the loader is free and others leave it room; then all its adapters are pinned
and their loads begin. Nothing is evicted before that, and never for what cannot fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from floe.adapters.figures import Figures
from floe.adapters.loader import Loader, Run, Unwanted
from floe.adapters.policy import Use
from floe.adapters.prefetch import Foresight
from floe.adapters.recency import GuardedPolicy
from floe.adapters.slots import Ahead, Broken, H, Load, Slot, Tier
from floe.adapters.table import Table
from floe.adapters.tenants import FairQueue, Ticket
from floe.core.errors import Busy, FloeError

BROKEN_S = 30.0
"""So long the router leaves out an adapter whose load failed, unless its file changes before."""

_EARLY_S = 0.001
"""A timer may come earlier than asked by the clock's resolution."""

log = logging.getLogger("floe.adapters")


class Admission(Generic[H]):
    """All changes of the table. `now_s` never goes back."""

    def __init__(
        self,
        *,
        table: Table[H],
        queue: FairQueue[H],
        policy: GuardedPolicy,
        figures: Figures,
        foresight: Foresight,
        load: Load[H],
        unload: Callable[[H], None],
        run: Run,
        now_s: Callable[[], float],
        look_ahead: Callable[[], None],
    ) -> None:
        """`look_ahead` is called whenever the loader has nothing to do and nobody waits."""
        self._table, self._queue, self._policy = table, queue, policy
        self._figures, self._foresight, self._now_s = figures, foresight, now_s
        self._look_ahead = look_ahead
        self.broken: dict[str, Broken] = {}
        self._crash = ""
        self.loader: Loader[H] = Loader(
            load=load,
            unload=unload,
            run=run,
            loaded=self._loaded,
            failed=self._failed,
            lost=self._lost,
            idle=self.pump,
        )

    @property
    def failure(self) -> str:
        """Why nothing can be loaded; "" while it can."""
        return self._crash or self.loader.stuck

    async def admit(
        self, wanted: list[Slot[H]], *, tenant: str, wait_s: float, is_counted: bool = True
    ) -> list[Slot[H]]:
        """Pin all of `wanted` at once when it is their turn; their loads have begun then.

        Raises:
            Busy: adapters in use left no room for `wait_s`.
        """
        ready: asyncio.Future[list[Slot[H]]] = asyncio.get_running_loop().create_future()
        ticket = Ticket(
            wanted=wanted, tenant=tenant, ready=ready, wait_s=wait_s, is_counted=is_counted
        )
        try:
            present = not self._table.missing(wanted)
            if not (present and not self._queue.is_barred and self._attempt(ticket)):
                self._queue.add(ticket)
                if not self._queue.is_barred:
                    self._attempt(ticket)
            return await ready
        except BaseException as error:  # whatever it is, nobody waits here any more
            self._queue.remove(ticket)
            ready.cancel()
            if not ready.cancelled() and ready.exception() is None:
                self.release(ready.result(), tenant=tenant)
            if not isinstance(error, FloeError):
                self.pump()
            raise

    def release(self, slots: Sequence[Slot[H]], *, tenant: str) -> None:
        """One lease less of each; the last of a forgotten one frees it."""
        for slot in slots:
            slot.unpin(tenant, self._now_s())
            if slot.is_doomed and slot.is_free:
                self.drop(slot)
        self.pump()

    def bring_ahead(self, slot: Slot[H], victims: Sequence[Slot[H]], *, kind: Ahead) -> None:
        """Load a slot that nobody has asked for yet."""
        slot.ahead = kind
        slot.last_used_s = self._now_s()
        self._foresight.began(kind)
        self._evict(victims)
        self._add(slot, victims, prefetched=True)

    def drop(self, slot: Slot[H]) -> Awaitable[None]:
        """Take a forgotten slot out and free it; done when it is freed."""
        if self._table.slots.get(slot.key) is not slot:
            raise RuntimeError(f"adapter cache: {slot.name!r} is dropped twice")
        del self._table.slots[slot.key]
        self._unused(slot)
        self._policy.evicted(slot.key)
        self._policy.forget(slot.key)
        return self.loader.drop(slot)

    def use(
        self, slot: Slot[H], *, tenant: str, context_D: NDArray[np.float32] | None = None
    ) -> Use:
        """A use of the slot, as policies are told of it."""
        return Use(
            key=slot.key,
            n_bytes=slot.n_bytes,
            load_ms=self._figures.estimate_ms(slot.key, tier=slot.where()),
            at_s=self._now_s(),
            tenant=tenant,
            context_D=context_D,
        )

    def pump(self) -> None:
        """Serve who can be served now. What goes wrong here is reported, and ends every wait."""
        try:
            for ticket in self._queue.ordered():
                if not self._attempt(ticket) and self._queue.is_overdue(ticket):
                    break
            if not self._queue and not self.loader.pending:
                self._look_ahead()
            self._crash = ""
        except Exception as error:
            if not self._crash:
                log.exception("adapter cache: admission failed")
            self._crash = f"admission of adapters failed: {type(error).__name__}"
            for ticket in self._queue:
                self._refuse(ticket, FloeError("the adapter cache failed; see the server's log"))

    # --- one ticket

    def _attempt(self, ticket: Ticket[H]) -> bool:
        """Whether it waits no longer: admitted, or refused."""
        if ticket.ready.done():  # its request has gone
            self._queue.remove(ticket)
            return True
        missing = self._table.missing(ticket.wanted)
        is_loading = bool(missing) and self.loader.pending > 0
        if is_loading and ticket.is_known and ticket.blocked_at_s is None:
            return False  # nothing to find out before the loader is free
        ticket.is_known = True
        fits = self._table.can_pin(ticket.wanted, tenant=ticket.tenant)
        if fits and is_loading:
            ticket.blocked_at_s = None
            return False
        victims = self._victims(ticket) if fits else None
        if victims is None:
            return self._blocked(ticket)
        self._admit(ticket, missing, victims)
        return True

    def _victims(self, ticket: Ticket[H]) -> list[Slot[H]] | None:
        now_s = self._now_s()
        soft = self._foresight.expected | self._foresight.preferred(now_s)
        return self._table.victims(ticket.wanted, tenant=ticket.tenant, at_s=now_s, last=soft)

    def _blocked(self, ticket: Ticket[H]) -> bool:
        """Held adapters leave no room; after `wait_s` of that it is refused."""
        loop = asyncio.get_running_loop()
        if ticket.blocked_at_s is None:
            ticket.blocked_at_s = loop.time()
            if ticket.wait_s > 0:
                loop.call_later(ticket.wait_s, self.pump)
        if loop.time() - ticket.blocked_at_s < ticket.wait_s - _EARLY_S:
            return False
        self._refuse(ticket, self._full(ticket))
        self._figures.refused(ticket.tenant)
        return True

    def _refuse(self, ticket: Ticket[H], error: Exception) -> None:
        self._queue.remove(ticket)
        if not ticket.ready.done():
            ticket.ready.set_exception(error)

    def _admit(self, ticket: Ticket[H], missing: list[Slot[H]], victims: Sequence[Slot[H]]) -> None:
        self._evict(victims)
        self._queue.admitted(ticket, loads=bool(missing))
        pinned, fresh = [], {slot.key for slot in missing}
        for wanted in ticket.wanted:
            slot = self._table.slots.get(wanted.key, wanted)
            is_new = wanted.key in fresh and wanted is slot
            if ticket.is_counted:
                self._count(slot, ticket.tenant, is_new=is_new)
            if slot.ahead:
                self._foresight.resolved(slot.ahead, used=True, at_s=self._now_s())
                slot.ahead = ""
            slot.pin(ticket.tenant, self._now_s())
            slot.is_doomed = False
            if is_new:
                self._add(slot, victims, prefetched=not ticket.is_counted)
                victims = ()
            pinned.append(slot)
        ticket.ready.set_result(pinned)

    def _count(self, slot: Slot[H], tenant: str, *, is_new: bool) -> None:
        hit = not is_new and slot.handle is not None
        name = "misses" if is_new else "hits" if hit else "coalesced"
        self._figures.count[name] += 1
        self._figures.asked(tenant, hit=hit)

    def _full(self, ticket: Ticket[H]) -> Busy:
        total = sum(slot.n_bytes for slot in ticket.wanted)
        held = sum(slot.n_bytes for slot in self._table.slots.values() if slot.pins)
        reserved = self._table.reserved_bytes(ticket.tenant)
        more = f", {reserved} are pinned or guaranteed to other tenants" if reserved else ""
        return Busy(
            f"no room for {total} bytes of adapters: {held} of {self._table.budget_bytes} bytes "
            f"are in use by running requests{more}. Try again, or raise adapters.budget_bytes"
        )

    # --- slots in and out

    def _add(self, slot: Slot[H], victims: Sequence[Slot[H]], *, prefetched: bool) -> None:
        self._table.slots[slot.key] = slot
        self._figures.load_began(slot.key, self._now_s())
        tenant = next(iter(slot.holders), "default")
        self._policy.admitted(self.use(slot, tenant=tenant), prefetched=prefetched)
        self.loader.bring(slot, victims)

    def _evict(self, victims: Sequence[Slot[H]]) -> None:
        for victim in victims:
            del self._table.slots[victim.key]
            self._unused(victim)
            self._figures.evicted(victim.key, self._now_s())
            self._policy.evicted(victim.key)

    def _unused(self, slot: Slot[H]) -> None:
        if slot.ahead:
            self._foresight.resolved(slot.ahead, used=False, at_s=self._now_s())
            slot.ahead = ""

    def _loaded(self, slot: Slot[H], n_bytes: int, tier: Tier, ms: float) -> None:
        slot.n_bytes = n_bytes
        self._figures.loaded(slot.key, n_bytes, tier=tier, ms=ms)
        self.broken.pop(slot.key, None)
        if slot.is_doomed and slot.is_free:
            self.drop(slot)

    def _failed(self, slot: Slot[H], error: BaseException) -> None:
        if self._table.slots.get(slot.key) is slot:
            del self._table.slots[slot.key]
            self._policy.evicted(slot.key)
        if isinstance(error, Unwanted):
            self._figures.count["dropped"] += 1
            return
        self._figures.count["failures"] += 1
        said = error.message if isinstance(error, FloeError) else type(error).__name__
        log.warning("adapter cache: %r was not loaded: %s", slot.name, said)
        if slot.ahead:
            self._foresight.skip(slot.key, until_s=self._now_s() + BROKEN_S)
            self._unused(slot)
        if isinstance(error, FloeError) and slot.stamp is not None:
            until_s = self._now_s() + BROKEN_S
            self.broken[slot.key] = Broken(reason=error.message, stamp=slot.stamp, until_s=until_s)

    def _lost(self, n_bytes: int) -> None:
        self._table.lost_bytes += n_bytes
        log.error("adapter cache: %d bytes could not be freed and stay counted", n_bytes)


async def handle_of(slot: Slot[H]) -> H:
    """The pinned slot's handle when it is loaded; raises what its load raised."""
    if slot.handle is None and slot.task is not None:
        await asyncio.shield(slot.task)
    if slot.handle is None:
        raise RuntimeError(f"adapter cache: {slot.name!r} is pinned and has no handle")
    return slot.handle
