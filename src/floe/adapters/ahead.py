"""Loading ahead: one adapter at a time, while the loader has nothing else to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic

from floe.adapters.admission import BROKEN_S, Admission
from floe.adapters.figures import Figures
from floe.adapters.lookup import Lookup
from floe.adapters.prefetch import AHEAD_SHARE, AT_MOST, Candidate, Foresight
from floe.adapters.recency import GuardedPolicy
from floe.adapters.slots import H, Slot
from floe.adapters.table import Table
from floe.core.errors import FloeError

NOBODY = ""
"""The tenant of what nobody asked for: it evicts nothing that is guaranteed to anyone."""

_AGAIN_S = 1.0

log = logging.getLogger("floe.adapters")


class LookAhead(Generic[H]):
    """Carries out what `Foresight` proposes."""

    def __init__(
        self,
        *,
        table: Table[H],
        policy: GuardedPolicy,
        figures: Figures,
        foresight: Foresight,
        lookup: Lookup[H],
        is_idle: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._table, self._policy, self._figures = table, policy, figures
        self._foresight, self._lookup, self._now_s = foresight, lookup, now_s
        self._is_idle = is_idle
        self._seeking: Candidate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.note = ""

    def look(self, admission: Admission[H]) -> None:
        """Begin with the best candidate, if there is one; come back when it is there."""
        if self._seeking is not None or self._foresight.mode == "off":
            return
        now_s = self._now_s()
        candidates = self._foresight.candidates(
            is_here=lambda digest: digest in self._table.slots,
            likely=self._likely,
            at_s=now_s,
        )
        found = next(candidates, None)
        is_full = found is not None and found.kind == "predicted" and not self._may_predict(1)
        self._seeking = None if is_full else found
        if self._seeking is not None:
            admission.loader.start(self._seek(self._seeking, admission))
        elif self._timer is None and self._foresight.is_watching:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_AGAIN_S, self._again, admission)

    def _likely(self, limit: int) -> list[tuple[str, float]]:
        """What the policy thinks likely, without mixes: they are composed when asked for."""
        found = self._policy.likely(at_s=self._now_s(), limit=limit)
        return [(key, chance) for key, chance in found if not self._lookup.is_mix(key)]

    def _again(self, admission: Admission[H]) -> None:
        self._timer = None
        admission.pump()

    async def _seek(self, candidate: Candidate, admission: Admission[H]) -> None:
        digest = candidate.share.digest
        try:
            slot = await self._lookup.single(
                candidate.share, is_counted=candidate.kind != "predicted"
            )
            if self._is_timely(slot, candidate):
                victims = self._room(slot, candidate)
                if victims is not None:
                    admission.bring_ahead(slot, victims, kind=candidate.kind)
                else:
                    again_s = self._now_s() + _AGAIN_S
                    self._foresight.skip(digest, until_s=again_s, kind=candidate.kind)
        except Exception as error:
            self._foresight.skip(digest, until_s=self._now_s() + BROKEN_S)
            if not isinstance(error, FloeError):
                log.exception("adapter cache: loading ahead failed")
                self.note = f"loading adapters ahead failed: {type(error).__name__}"
        else:
            self.note = ""
        finally:
            self._seeking = None
        admission.pump()

    def _is_timely(self, slot: Slot[H], candidate: Candidate) -> bool:
        """Whether nobody came first while it was looked up, and it is still to be loaded."""
        is_current = self._foresight.is_current(candidate, self._now_s())
        return slot.key not in self._table.slots and self._is_idle() and is_current

    def _room(self, slot: Slot[H], candidate: Candidate) -> list[Slot[H]] | None:
        """What has to go for it; None if there is no room or that is not worth it."""
        now_s, kind = self._now_s(), candidate.kind
        if slot.n_bytes > self._table.limit_bytes([slot], tenant=NOBODY):
            return None
        if kind == "predicted" and not self._may_predict(slot.n_bytes):
            return None
        expected, preferred = self._foresight.expected, self._foresight.preferred(now_s)
        is_asked = kind == "expected"
        victims = self._table.victims(
            [slot],
            tenant=NOBODY,
            at_s=now_s,
            keep=expected if is_asked else expected | preferred,
            last=preferred if is_asked else (),
        )
        if victims is None or kind != "predicted":
            return victims
        worth = self._foresight.is_worth(candidate, [v.key for v in victims], self._load_ms)
        return victims if worth else None

    def _may_predict(self, n_bytes: int) -> bool:
        unused = [s.n_bytes for s in self._table.slots.values() if s.ahead == "predicted"]
        room = AHEAD_SHARE * self._table.budget_bytes
        return len(unused) < AT_MOST and sum(unused) + n_bytes <= room

    def _load_ms(self, digest: str) -> float:
        slot = self._table.slots.get(digest)
        return self._figures.estimate_ms(digest, tier=slot.where() if slot else "disk")
