"""Adapters in the engine's memory: leased, counted in bytes, loaded off the serving thread.

All state belongs to one event loop. Loads and frees run in a thread, one at a time, so that the
engine never holds more bytes than the budget. `admission` says who gets room and when, `tenants`
in which order, `recency` and the policy who goes, `ahead` what comes unasked, `tiers` from where.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from floe.adapters.admission import Admission, handle_of
from floe.adapters.ahead import LookAhead
from floe.adapters.figures import Figures
from floe.adapters.host import HostMemory
from floe.adapters.listing import counted, row
from floe.adapters.loader import Run
from floe.adapters.lookup import Lookup
from floe.adapters.mix import composing_pays
from floe.adapters.pinned import Pinned
from floe.adapters.policy import ReplacementPolicy
from floe.adapters.prefetch import Foresight, Mode
from floe.adapters.recency import GuardedPolicy
from floe.adapters.shares import fitting, merged, mix_key
from floe.adapters.slots import (
    Counters,
    H,
    Load,
    LoadTimes,
    Mix,
    Row,
    Slot,
    Store,
    TenantFigures,
)
from floe.adapters.table import Table
from floe.adapters.tenants import FairQueue, Partition
from floe.adapters.tiers import Tiers
from floe.core.adapter import AdapterManifest
from floe.core.errors import BadAdapter, Busy, Untrusted
from floe.core.route import Route, Share, TooLarge
from floe.core.sections import TenantConfig


class AdapterCache(Generic[H]):
    """Leases of adapters; the bytes of all resident ones never exceed `budget_bytes`."""

    def __init__(
        self,
        *,
        store: Store,
        load: Load[H],
        unload: Callable[[H], None],
        budget_bytes: int,
        policy: ReplacementPolicy | None = None,
        mix: Mix | None = None,
        host: HostMemory | None = None,
        tenants: Mapping[str, TenantConfig] | None = None,
        pinned: Sequence[str] = (),
        prefetch: Mode = "both",
        wait_ms: float = 0.0,
        max_overtaken: int = 16,
        clock_s: Callable[[], float] = time.time,
        run: Run = asyncio.to_thread,
    ) -> None:
        """`policy` None is least recently used. `pinned`: names that are always resident.

        A lease waits up to `wait_ms` for room that others hold. `run` calls a function off the
        loop.

        Raises:
            BadConfig: guarantees of `tenants` that exceed the budget.
        """
        self._mix, self._wait_s = mix, wait_ms / 1000
        self._clock_s, self._last_s, self._run = clock_s, 0.0, run
        self._tiers = Tiers(store, host)
        self._partition = Partition(tenants or {}, budget_bytes=budget_bytes)
        self._policy = GuardedPolicy(policy)
        self._figures, self._foresight = Figures(), Foresight(prefetch)
        self._table: Table[H] = Table(
            budget_bytes=budget_bytes, policy=self._policy, partition=self._partition
        )
        self._queue: FairQueue[H] = FairQueue(tenants or {}, max_overtaken=max_overtaken)
        self._lookup: Lookup[H] = Lookup(
            tiers=self._tiers, table=self._table, figures=self._figures, run=run
        )
        self._ahead: LookAhead[H] = LookAhead(
            table=self._table,
            policy=self._policy,
            figures=self._figures,
            foresight=self._foresight,
            lookup=self._lookup,
            is_idle=self._is_idle,
            now_s=self._now_s,
        )
        self._admission: Admission[H] = Admission(
            table=self._table,
            queue=self._queue,
            policy=self._policy,
            figures=self._figures,
            foresight=self._foresight,
            load=load,
            unload=unload,
            run=run,
            now_s=self._now_s,
            look_ahead=lambda: self._ahead.look(self._admission),
        )
        self._pinned: Pinned[H] = Pinned(
            pinned,
            table=self._table,
            admission=self._admission,
            lookup=self._lookup,
            entries=self._tiers.entries,
            run=run,
            wait_s=self._wait_s,
        )

    @asynccontextmanager
    async def lease(
        self,
        route: Route,
        *,
        expected_tokens: int = 0,
        tenant: str = "default",
        topic_vector: NDArray[np.float32] | None = None,
    ) -> AsyncIterator[Sequence[tuple[H, float]]]:
        """The route's adapters with their weights, pinned until the block ends; base = ().

        With a mix cache and enough `expected_tokens`, several come composed into one.
        `topic_vector`: the prompt reduced to D numbers, for the policy.

        Raises:
            BadRequest: a weight that is not finite.
            TooLarge: together they do not fit the budget; it says which of them would.
            BadAdapter: an adapter is gone, changed or refused.
            Untrusted: one was revoked or is not signed as it must be; its memory is freed.
            Busy: adapters in use fill the budget.
        """
        shares = merged(route)
        if not shares:
            yield ()
            return
        began_s = asyncio.get_running_loop().time()
        if not self._pinned.is_started:
            await self.start()
        wanted = [await self._trusted(share) for share in shares]
        slots, weights = await self._leased(
            wanted, shares, route, expected_tokens, tenant, topic_vector
        )
        try:
            leased = []
            for slot, weight in zip(slots, weights, strict=True):
                leased.append((await handle_of(slot), weight))
            self._figures.waited(tenant, 1000 * (asyncio.get_running_loop().time() - began_s))
            yield leased
        finally:
            self._admission.release(slots, tenant=tenant)

    @contextmanager
    def expect(self, route: Route, *, tenant: str = "default") -> Iterator[None]:
        """While the block runs, the route's adapters will be leased soon: they may be loaded.

        For requests that wait for something else; call it on the loop's thread.
        """
        del tenant  # it takes no room that is anybody's own
        shares = [s for s in route.shares if s.weight]
        self._foresight.expect(shares)
        self._admission.pump()
        try:
            yield
        finally:
            self._foresight.unexpect(shares)

    def prefer(self, digests: Sequence[str]) -> None:
        """The adapters that had best be in memory, best first, until the next call.

        They are loaded when nothing else is to do, and go last when room is needed; one that is
        no longer named keeps that protection for half a minute. On the loop's thread.
        """
        self._foresight.prefer(digests, self._now_s())
        self._admission.pump()

    async def start(self) -> None:
        """Load what is pinned by configuration; what cannot be is in `notes`."""
        await self._pinned.start()

    async def forget(self, digest: str) -> None:
        """Free the adapter and every mix of it, at once or when the last lease ends (A04)."""
        self._admission.broken.pop(digest, None)
        if digest not in self._table.slots:
            self._policy.forget(digest)
        dropped = []
        for slot in [s for s in self._table.slots.values() if digest in s.parts]:
            slot.is_doomed = True
            if slot.is_free:
                dropped.append(asyncio.ensure_future(self._admission.drop(slot)))
        if dropped:
            await asyncio.shield(asyncio.gather(*dropped))
        self._foresight.forget(digest)
        self._figures.forget(digest)
        await self._run(self._tiers.forget, digest)
        if self._pinned.names:
            await self.start()  # a pinned name may mean something else now

    # --- what it says of itself

    @property
    def failure(self) -> str:
        """Why the cache cannot serve; "" while it can. For health checks (F07)."""
        return self._admission.failure

    @property
    def notes(self) -> tuple[str, ...]:
        """What works less well than it should, for health reports."""
        lost = self._table.lost_bytes
        more = [
            self._policy.note,
            self._ahead.note,
            self._tiers.note,
            f"{lost} bytes of adapters could not be freed" if lost else "",
        ]
        return (*self._pinned.notes, *(note for note in more if note))

    @property
    def policy_name(self) -> str:
        """The replacement policy that decides now."""
        return self._policy.name

    def is_resident(self, digest: str) -> bool:
        """Whether the adapter is in the engine's memory now. Any thread may ask."""
        slot = self._table.slots.get(digest)
        return slot is not None and slot.handle is not None

    def load_ms(self, digest: str) -> float:
        """What a load of the adapter costs, as measured, else by its bytes and tier."""
        return self._figures.estimate_ms(digest, tier=self._tiers.where(digest))

    def fault(self, manifest: AdapterManifest) -> str:
        """Why a lease of the adapter would fail, as far as is known; "" if nothing is.

        A failed load counts for half a minute, or until the file is written again or a lease
        succeeds.
        """
        size = manifest.file_bytes
        if size > self._table.budget_bytes and manifest.digest not in self._table.slots:
            return f"it needs {size} bytes, adapters.budget_bytes is {self._table.budget_bytes}"
        broken = self._admission.broken.get(manifest.digest)
        current = broken is not None and self._now_s() < broken.until_s and broken.stamp.is_current
        return broken.reason if broken is not None and current else ""

    def counters(self) -> Counters:
        """Totals and gauges at this moment."""
        return counted(
            self._table,
            self._figures,
            self._foresight,
            self._policy,
            self._tiers,
            waiting=len(self._queue),
            at_s=self._now_s(),
        )

    def by_tenant(self) -> Mapping[str, TenantFigures]:
        """Each tenant's totals and gauges."""
        resident: dict[str, int] = {}
        for slot in self._table.slots.values():
            for name in slot.uses:
                resident[name] = resident.get(name, 0) + slot.n_bytes
        return self._figures.by_tenant(resident, self._partition.guarantees)

    def load_times(self) -> LoadTimes:
        """How long loads took."""
        return self._figures.load_times()

    def snapshot(self) -> tuple[Row, ...]:
        """Every adapter of the store with its tier, state, pins, size and last use."""
        rows = []
        for entry in self._tiers.entries():
            manifest = entry.stored.manifest if entry.stored else None
            digest = manifest.digest if manifest else ""
            reason = entry.reason or (self.fault(manifest) if manifest else "")
            tier = self._tiers.where(digest) if manifest else "none"
            slot = self._table.slots.get(digest)
            rows.append(row(entry, slot, reason=reason, tier=tier, table=self._table))
        return tuple(rows)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not add up."""
        self._table.check()
        self._tiers.check()
        if self._admission.loader.pending < 0:
            raise RuntimeError("adapter cache: more loads ended than began")

    # --- admission

    async def _trusted(self, share: Share) -> Slot[H]:
        """A slot for the share; one that is not trusted any more leaves memory."""
        try:
            return await self._lookup.single(share)
        except Untrusted:
            if share.digest in self._table.slots:
                await self.forget(share.digest)
            raise

    async def _leased(
        self,
        wanted: list[Slot[H]],
        shares: Sequence[Share],
        route: Route,
        expected_tokens: int,
        tenant: str,
        context_D: NDArray[np.float32] | None,
    ) -> tuple[list[Slot[H]], list[float]]:
        weights = [share.weight for share in shares]
        if self._mix is not None and len(wanted) > 1:
            mixed = self._lookup.mixed(self._mix, wanted, mix_key(shares))
            ready = mixed.key in self._table.slots or self._mix.has(mix_key(shares))
            if composing_pays(len(wanted), expected_tokens, is_composed=ready):
                slot = await self._composed(mixed, tenant, context_D)
                if slot is not None:
                    self._figures.count["mixes"] += 1
                    return [slot], [1.0]
        self._check_size(wanted, shares, route, tenant)
        self._tell(wanted, tenant, context_D)
        return await self._admission.admit(wanted, tenant=tenant, wait_s=self._wait_s), weights

    async def _composed(
        self, mixed: Slot[H], tenant: str, context_D: NDArray[np.float32] | None
    ) -> Slot[H] | None:
        """The mix, pinned and loaded; None if there is no room or a part of it is damaged."""
        if mixed.n_bytes > self._table.limit_bytes([mixed], tenant=tenant):
            return None
        self._tell([mixed], tenant, context_D)
        try:
            [slot] = await self._admission.admit([mixed], tenant=tenant, wait_s=0.0)
        except Busy:
            return None  # apart they may be resident already
        try:
            await handle_of(slot)
        except BaseException as error:
            self._admission.release([slot], tenant=tenant)
            if isinstance(error, BadAdapter):
                return None  # loaded apart, the damaged part is known by name
            raise
        return slot

    def _check_size(
        self, wanted: list[Slot[H]], shares: Sequence[Share], route: Route, tenant: str
    ) -> None:
        """Raise TooLarge for what could not be held even alone; nothing is evicted for it."""
        limit = self._table.limit_bytes(wanted, tenant=tenant)
        total = sum(slot.n_bytes for slot in wanted)
        if total <= limit:
            return
        sizes = {slot.key: slot.n_bytes for slot in wanted}
        less = fitting(route, shares, sizes, room_bytes=limit)
        self._figures.count["trimmed"] += route.how == "routed" and bool(less.shares)
        budget = self._table.budget_bytes
        others = f", {budget - limit} of it are others' own" if limit != budget else ""
        raise TooLarge(
            f"adapters {', '.join(s.name for s in wanted)} need {total} bytes in memory, the "
            f"budget is {budget}{others}. Raise adapters.budget_bytes",
            fitting=less,
        )

    def _tell(
        self, slots: Sequence[Slot[H]], tenant: str, context_D: NDArray[np.float32] | None
    ) -> None:
        for slot in slots:
            use = self._admission.use(slot, tenant=tenant, context_D=context_D)
            self._policy.used(use, resident=slot.key in self._table.slots)

    def _is_idle(self) -> bool:
        return not self._queue and not self._admission.loader.pending

    def _now_s(self) -> float:
        """The clock, but never back."""
        self._last_s = max(self._last_s, self._clock_s())
        return self._last_s
