"""Adapters in the engine's memory: leased, counted in bytes, evicted oldest first.

All state belongs to one event loop; loading and freeing run in a thread, one at a time and in the
order they were admitted, so that the engine never holds more bytes than the budget.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from floe.adapters.mix import MixKey, composing_pays, mix_digest
from floe.adapters.slots import (
    Broken,
    Counters,
    H,
    Load,
    LoadTimes,
    Mix,
    Row,
    Slot,
    Stamp,
    State,
    Store,
    TenantFigures,
)
from floe.adapters.store import Entry
from floe.core.adapter import AdapterManifest
from floe.core.errors import BadAdapter, BadRequest, Busy, FloeError
from floe.core.route import Route, Share

_MIX_SLACK_BYTES = 1 << 16


class AdapterCache(Generic[H]):
    """Leases of adapters; the bytes of all resident ones never exceed `budget_bytes`."""

    def __init__(
        self,
        *,
        store: Store,
        load: Load[H],
        unload: Callable[[H], None],
        budget_bytes: int,
        mix: Mix | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._mix, self._clock_s = store, mix, clock_s
        self._load, self._unload, self._budget = load, unload, budget_bytes
        self._slots: OrderedDict[str, Slot[H]] = OrderedDict()  # least recently used first
        self._broken: dict[str, Broken] = {}
        self._count: Counter[str] = Counter()
        self._load_ms = 0.0
        self._lost_bytes = 0  # could not be freed, so they still count
        self._turn = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

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

        Raises:
            BadRequest: a weight that is not finite.
            BadAdapter: an adapter is gone, changed or refused, or does not fit the budget at all.
            Busy: adapters in use fill the budget.
        """
        del tenant, topic_vector
        shares = _merged(route)
        if not shares:
            yield ()
            return
        wanted = [await self._single(share) for share in shares]
        slots, weights = await self._pinned(wanted, shares, expected_tokens)
        try:
            leased = []
            for slot, weight in zip(slots, weights, strict=True):
                leased.append((await self._handle(slot), weight))
            yield leased
        finally:
            for slot in slots:
                self._release(slot)

    async def forget(self, digest: str) -> None:
        """Free the adapter and every mix of it, at once or when the last lease ends (A04)."""
        self._broken.pop(digest, None)
        for slot in [s for s in self._slots.values() if digest in s.parts]:
            slot.is_doomed = True
            if slot.is_evictable:
                await asyncio.shield(self._drop(slot))

    @property
    def failure(self) -> str:
        """Why the cache cannot serve; "" while it can."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What works less well than it should, for health reports."""
        return ()

    async def start(self) -> None:
        """Load what is pinned by configuration."""

    def is_resident(self, digest: str) -> bool:
        """Whether the adapter is in the engine's memory now."""
        slot = self._slots.get(digest)
        return slot is not None and slot.handle is not None

    def load_ms(self, digest: str) -> float:
        """What a load of the adapter costs, in milliseconds, as far as is known."""
        del digest
        loads = max(1, self._count["misses"] - self._count["failures"])
        return self._load_ms / loads if self._load_ms else 5.0

    def prefer(self, digests: Sequence[str]) -> None:
        """The adapters that had best be in memory, best first."""
        del digests

    @contextmanager
    def expect(self, route: Route, *, tenant: str = "default") -> Iterator[None]:
        """While the block runs, the route's adapters will be leased soon: they may be loaded."""
        del route, tenant
        yield

    def by_tenant(self) -> Mapping[str, TenantFigures]:
        """Each tenant's totals and gauges."""
        return {}

    def load_times(self) -> LoadTimes:
        """How long loads took."""
        return LoadTimes(
            upper_ms=(math.inf,), counts=(self._count["misses"],), sum_ms=self._load_ms
        )

    def counters(self) -> Counters:
        """Totals and gauges at this moment."""
        pinned = [s for s in self._slots.values() if s.pins]
        return Counters(
            **{k: self._count[k] for k in ("hits", "misses", "coalesced", "evictions")},
            failures=self._count["failures"],
            mixes=self._count["mixes"],
            load_ms=self._load_ms,
            budget_bytes=self._budget,
            resident_bytes=self._used_bytes(),
            pinned_bytes=sum(s.n_bytes for s in pinned),
            resident=sum(s.handle is not None for s in self._slots.values()),
            leased=sum(s.pins for s in pinned),
        )

    def fault(self, manifest: AdapterManifest) -> str:
        """Why a lease of the adapter would fail, as far as is known; "" if nothing is.

        A failed load counts until the file is written again or a lease succeeds.
        """
        if manifest.file_bytes > self._budget and manifest.digest not in self._slots:
            return f"it needs {manifest.file_bytes} bytes, adapters.budget_bytes is {self._budget}"
        broken = self._broken.get(manifest.digest)
        return broken.reason if broken is not None and broken.stamp.is_current else ""

    def snapshot(self) -> tuple[Row, ...]:
        """Every adapter of the store with its tier, state, pins, size and last use."""
        return tuple(self._row(entry) for entry in self._store.entries())

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not add up."""
        for key, slot in self._slots.items():
            if key != slot.key or slot.pins < 0 or slot.n_bytes < 0 or slot.task is None:
                raise RuntimeError(f"adapter cache: slot {key[:12]} is inconsistent")
            if slot.task.done() and slot.handle is None:
                raise RuntimeError(f"adapter cache: slot {key[:12]} failed and was not removed")
        if self._used_bytes() > self._budget:
            raise RuntimeError("adapter cache: resident bytes exceed the budget")

    # --- admission

    async def _single(self, share: Share) -> Slot[H]:
        """A slot for the share, not yet in the table; its size comes from the store."""
        known = self._slots.get(share.digest)
        if known is not None:
            size, stamp = known.n_bytes, known.stamp
        else:
            try:
                stored = await asyncio.to_thread(self._store.find, share.name, share.digest)
            except BadAdapter:
                self._count["failures"] += 1
                raise
            size, stamp = stored.manifest.file_bytes, Stamp.of(stored.gguf)

        def opened() -> AbstractContextManager[Path]:
            return self._store.opened(self._store.find(share.name, share.digest))

        parts = frozenset({share.digest})
        return Slot(
            key=share.digest, name=share.name, n_bytes=size, parts=parts, open=opened, stamp=stamp
        )

    async def _pinned(
        self, wanted: list[Slot[H]], shares: Sequence[Share], expected_tokens: int
    ) -> tuple[list[Slot[H]], list[float]]:
        weights = [share.weight for share in shares]
        if self._mix is not None and len(wanted) > 1:
            mixed = self._mixed(self._mix, wanted, shares)
            ready = mixed.key in self._slots or self._mix.has(_key(shares))
            if composing_pays(len(wanted), expected_tokens, is_composed=ready):
                slot = await self._composed(mixed)
                if slot is not None:
                    self._count["mixes"] += 1
                    return [slot], [1.0]
                self._count["mixes_without_room"] += 1  # apart they may be resident already
        return await self._admit(wanted), weights

    async def _composed(self, mixed: Slot[H]) -> Slot[H] | None:
        """The mix, pinned and loaded; None if there is no room or a part of it is damaged."""
        try:
            [slot] = await self._admit([mixed])
        except (Busy, BadAdapter):
            return None
        try:
            await self._handle(slot)
        except BaseException as error:
            self._release(slot)
            if isinstance(error, BadAdapter):
                return None  # loaded apart, the damaged part is known by name
            raise
        return slot

    def _mixed(self, mix: Mix, wanted: list[Slot[H]], shares: Sequence[Share]) -> Slot[H]:
        key = _key(shares)
        return Slot(
            key=mix_digest(key),
            name=" + ".join(slot.name for slot in wanted),
            n_bytes=sum(slot.n_bytes for slot in wanted) + _MIX_SLACK_BYTES,
            parts=frozenset(digest for digest, _ in key),
            open=lambda: mix.composed(key),
        )

    async def _admit(self, wanted: list[Slot[H]]) -> list[Slot[H]]:
        """Pin all of `wanted` at once or none; starts the loads that are needed."""
        total = sum(slot.n_bytes for slot in wanted)
        if total > self._budget:
            raise BadAdapter(
                f"adapters {', '.join(s.name for s in wanted)} need {total} bytes in memory, the "
                f"budget is {self._budget}. Raise adapters.budget_bytes"
            )
        keep = {slot.key for slot in wanted}
        while (victims := self._victims(wanted, keep)) is None:
            # Loads that nobody waits for any more cannot be evicted before they end.
            pending = [
                s.task
                for s in self._slots.values()
                if s.pins == 0 and s.handle is None and s.key not in keep and s.task is not None
            ]
            if not pending:
                raise self._full(total)
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for victim in victims:
            del self._slots[victim.key]
            self._count["evictions"] += 1
        return [self._pin(slot, victims) for slot in wanted]

    def _victims(self, wanted: list[Slot[H]], keep: set[str]) -> list[Slot[H]] | None:
        """The least recently used slots whose bytes are needed; None if they do not suffice."""
        need = sum(slot.n_bytes for slot in wanted if slot.key not in self._slots)
        free = self._budget - self._used_bytes()
        victims = []
        for slot in self._slots.values():
            if free >= need:
                break
            if slot.is_evictable and slot.key not in keep:
                victims.append(slot)
                free += slot.n_bytes
        return victims if free >= need else None

    def _pin(self, fresh: Slot[H], victims: list[Slot[H]]) -> Slot[H]:
        slot = self._slots.setdefault(fresh.key, fresh)
        if slot is fresh:
            self._count["misses"] += 1
            slot.task = self._start(self._bring(slot, victims[:]))
            victims.clear()  # freed by the first load
        else:
            self._count["coalesced" if slot.handle is None else "hits"] += 1
        slot.pins += 1
        slot.is_doomed = False
        self._touch(slot)
        return slot

    def _full(self, total: int) -> Busy:
        pinned = sum(slot.n_bytes for slot in self._slots.values() if slot.pins)
        return Busy(
            f"no room for {total} bytes of adapters: {pinned} of {self._budget} bytes are in use "
            "by running requests. Try again, or raise adapters.budget_bytes"
        )

    # --- loading and freeing

    async def _bring(self, slot: Slot[H], victims: list[Slot[H]]) -> None:
        try:
            async with self._turn:
                started = time.perf_counter()
                handle, size = await asyncio.to_thread(self._swap, slot, victims)
                self._load_ms += 1000 * (time.perf_counter() - started)
        except BaseException as error:
            if self._slots.get(slot.key) is slot:
                del self._slots[slot.key]
            self._count["failures"] += 1
            if isinstance(error, FloeError) and slot.stamp is not None:
                self._broken[slot.key] = Broken(reason=error.message, stamp=slot.stamp)
            raise
        slot.handle, slot.n_bytes = handle, size
        self._broken.pop(slot.key, None)
        if slot.is_doomed and slot.is_evictable:
            self._drop(slot)

    def _swap(self, slot: Slot[H], victims: Sequence[Slot[H]]) -> tuple[H, int]:
        """In a thread: free first, then load, so that both are never in memory together."""
        self._free(victims)
        with slot.open() as path:
            size = path.stat().st_size
            if size > slot.n_bytes:
                raise BadAdapter(f"adapter {slot.name!r} needs {size} bytes, more than announced")
            return self._load(path, key=slot.key), size

    def _free(self, victims: Sequence[Slot[H]]) -> None:
        """Free all, then raise the first error; what could not be freed still counts."""
        errors: list[Exception] = []
        for victim in victims:
            handle, victim.handle = victim.handle, None
            if handle is None:
                continue
            try:
                self._unload(handle)
            except Exception as error:
                self._lost_bytes += victim.n_bytes
                errors.append(error)
        if errors:
            raise errors[0]

    def _drop(self, slot: Slot[H]) -> asyncio.Task[None]:
        del self._slots[slot.key]

        async def free() -> None:
            async with self._turn:
                await asyncio.to_thread(self._free, [slot])

        return self._start(free())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that outlives the request that started it; its error goes to whoever waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: the waiters, if any are left, raise it

    async def _handle(self, slot: Slot[H]) -> H:
        if slot.handle is None and slot.task is not None:
            await asyncio.shield(slot.task)
        if slot.handle is None:
            raise RuntimeError(f"adapter cache: {slot.name!r} is pinned and has no handle")
        return slot.handle

    def _release(self, slot: Slot[H]) -> None:
        slot.pins -= 1
        if self._slots.get(slot.key) is slot:
            self._touch(slot)
            if slot.is_doomed and slot.is_evictable:
                self._drop(slot)

    def _touch(self, slot: Slot[H]) -> None:
        slot.last_used_s = self._clock_s()
        self._slots.move_to_end(slot.key)

    def _used_bytes(self) -> int:
        return self._lost_bytes + sum(slot.n_bytes for slot in self._slots.values())

    def _row(self, entry: Entry) -> Row:
        manifest = entry.stored.manifest if entry.stored else None
        slot = self._slots.get(manifest.digest) if manifest else None
        reason = entry.reason or (self.fault(manifest) if manifest else "")
        size = slot.n_bytes if slot else manifest.file_bytes if manifest else 0
        state: State = "failed" if reason else "registered"
        if slot is not None:
            state = "loading" if slot.handle is None else "ready"
        return Row(
            name=entry.name,
            digest=manifest.digest if manifest else "",
            tier="memory" if slot and slot.handle is not None else "disk" if manifest else "none",
            state=state,
            reason=reason,
            pins=slot.pins if slot else 0,
            n_bytes=size,
            rank=manifest.rank if manifest else 0,
            fit=self._budget // size if size else 0,
            last_used_s=slot.last_used_s if slot else None,
        )


def _merged(route: Route) -> list[Share]:
    """One share per content: weights of the same adapter add up, zero means not at all."""
    merged: dict[str, Share] = {}
    for share in route.shares:
        if not math.isfinite(share.weight):
            raise BadRequest(f"the scale of adapter {share.name!r} must be finite", param="lora")
        weight = share.weight + (merged[share.digest].weight if share.digest in merged else 0.0)
        merged[share.digest] = Share(name=share.name, digest=share.digest, weight=weight)
    return [share for share in merged.values() if share.weight]


def _key(shares: Sequence[Share]) -> MixKey:
    """As `Route.key`."""
    return tuple(sorted((share.digest, share.weight) for share in shares))
