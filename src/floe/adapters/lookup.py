"""Slots for what a request names: size from the store, file on the disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic

from floe.adapters.figures import Figures
from floe.adapters.loader import Run
from floe.adapters.mix import MixKey, mix_digest
from floe.adapters.slots import H, Mix, Slot, Stamp
from floe.adapters.staging import Staging
from floe.adapters.table import Table
from floe.adapters.tiers import Tiers
from floe.core.errors import BadAdapter
from floe.core.route import Share

_MIX_SLACK_BYTES = 1 << 16
_MOST_MIXES = 4_096


class Lookup(Generic[H]):
    """Fresh slots, not yet in the table."""

    def __init__(self, *, tiers: Tiers, table: Table[H], figures: Figures, run: Run) -> None:
        self._tiers, self._table, self._figures, self._run = tiers, table, figures, run
        self._staging = Staging(fetch=tiers.fetch, run=run)
        self._mixes: OrderedDict[str, None] = OrderedDict()

    def is_mix(self, key: str) -> bool:
        """Whether this is the identity of several adapters composed into one."""
        return key in self._mixes

    async def single(self, share: Share, *, is_counted: bool = True) -> Slot[H]:
        """A slot for the share; a remote adapter is fetched first.

        With `is_counted` one that cannot be had is a failure of the cache's figures.

        Raises:
            BadAdapter: it is gone, changed, or cannot be fetched.
            Untrusted: it was revoked, also after it was loaded.
        """
        known, trusted = self._table.slots.get(share.digest), self._tiers.trust_stamp
        if known is not None and known.trusted != trusted:
            await self._run(self._tiers.find, share.name, share.digest)
            known.trusted = trusted
        if known is not None:
            size, stamp, name = known.n_bytes, known.stamp, known.name
        else:
            try:
                stored = await self._run(self._tiers.find, share.name, share.digest)
                size = stored.manifest.file_bytes
                self._figures.seen(share.digest, size)
                if self._tiers.where(share.digest) == "remote" and size <= self._limit:
                    await self._fetch(share.digest, size)
            except BadAdapter:
                self._figures.count["failures"] += is_counted
                raise
            stamp, name = Stamp.of(stored.gguf), share.name or stored.manifest.name

        def opened() -> AbstractContextManager[Path]:
            return self._tiers.opened(name, share.digest)

        return Slot(
            key=share.digest,
            name=name,
            n_bytes=size,
            parts=frozenset({share.digest}),
            open=opened,
            where=lambda: self._tiers.where(share.digest),
            stamp=stamp,
            is_fixed=share.digest in self._table.fixed,
            trusted=trusted,
        )

    def mixed(self, mix: Mix, wanted: Sequence[Slot[H]], key: MixKey) -> Slot[H]:
        """A slot for several as one."""
        size = sum(slot.n_bytes for slot in wanted) + _MIX_SLACK_BYTES
        digest = mix_digest(key)
        self._figures.seen(digest, size)
        self._mixes[digest] = None
        while len(self._mixes) > _MOST_MIXES:
            self._mixes.popitem(last=False)
        return Slot(
            key=digest,
            name=" + ".join(slot.name for slot in wanted),
            n_bytes=size,
            parts=frozenset(digest for digest, _ in key),
            open=lambda: mix.composed(key),
        )

    @property
    def _limit(self) -> int:
        return self._table.budget_bytes  # what cannot be loaded is not fetched either

    async def _fetch(self, digest: str, n_bytes: int) -> None:
        took_ms = await self._staging.bring(digest)
        if took_ms is not None:
            self._figures.fetched(n_bytes, took_ms)
