"""The router and the adapter cache learning together, on two time scales (POLAR).

Fast: every request is routed and leases its adapters; what became of it teaches the router.
Slow: at the end of an epoch the resident set is chosen anew from what the router expects of the
adapters, and the cache brings it in when nothing else is to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from floe.adapters.cache import AdapterCache
from floe.adapters.epochs import EpochController, Plan
from floe.core.outcome import Outcome
from floe.core.request import Request
from floe.core.route import Route, Share
from floe.routing.router import Router

H = TypeVar("H")
Sizes = Callable[[], Mapping[str, int]]
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Epoch:
    """Requests of the present epoch, those for adapters by how; rewards before it."""

    requests: int = 0
    routed: int = 0
    named: int = 0
    rewards_before: int = 0


class PolarManager(Generic[H]):
    """`route`, `lease`, `feedback`, `warmup`: adapters for requests, learned online.

    `sizes` gives bytes by digest of every adapter there is; `miss_cost_per_s` is what a second's
    load costs in the router's unit (nats per token). Without `epochs` the slow scale is off.
    Learning runs off the event loop; a failure in it is logged by class and counted, and serving
    goes on.
    """

    def __init__(
        self,
        *,
        router: Router,
        cache: AdapterCache[H],
        sizes: Sizes,
        miss_cost_per_s: float,
        epochs: EpochController | None = None,
    ) -> None:
        self._router, self._cache, self._sizes = router, cache, sizes
        self._miss_cost_per_s, self._epochs = miss_cost_per_s, epochs
        self._tasks: set[asyncio.Task[None]] = set()
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._seen = _Epoch()
        self._failures = 0
        self.plan: Plan | None = None

    def route(self, request: Request) -> Route:
        """The adapters for a request, with their weights and the reason."""
        return self._router.choose(request)

    def lease(
        self, route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AbstractAsyncContextManager[Sequence[tuple[H, float]]]:
        """The route's adapters in memory, pinned until the block ends."""
        return self._cache.lease(route, expected_tokens=expected_tokens, tenant=tenant)

    def feedback(
        self, request_id: str, *, thumbs: int | None = None, metric: float | None = None
    ) -> bool:
        """What people or a metric say of an answer; False when nothing is learned from it."""
        return self._router.feedback(request_id, thumbs=thumbs, metric=metric)

    async def heard(self, request_id: str) -> None:
        """Wait until an answer that has ended is taken in: feedback may come on its heels."""
        if (task := self._learning.get(request_id)) is not None:
            await asyncio.shield(task)

    async def warmup(self, names: Sequence[str], digests: Mapping[str, str]) -> None:
        """Load the named adapters now, in this order; `digests` by name.

        Raises:
            BadAdapter, Busy: one cannot be loaded; those before it are.
        """
        for name in names:
            share = Share(name=name, digest=digests[name], weight=1.0)
            async with self._cache.lease(Route(shares=(share,), how="explicit")):
                pass

    def learn(self, outcome: Outcome) -> None:
        """Take in what became of a request; on the event loop, returns at once."""
        task = asyncio.get_running_loop().create_task(self._learn(outcome))
        self._tasks.add(task)
        self._learning[outcome.request_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if self._learning.get(outcome.request_id) is done:
                del self._learning[outcome.request_id]

        task.add_done_callback(ended)

    async def settled(self) -> None:
        """Wait until everything that was heard is learned."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def counters(self) -> dict[str, float]:
        """Epochs, what the last plan wants, and failures in learning."""
        plan = self.plan
        return {
            "polar_epochs_total": float(self._epochs.epoch if self._epochs else 0),
            "polar_preferred": float(len(plan.prefer) if plan else 0),
            "polar_changes": float(len(plan.admit) + len(plan.evict) if plan else 0),
            "polar_failures_total": float(self._failures),
        }

    async def _learn(self, outcome: Outcome) -> None:
        try:
            await asyncio.to_thread(self._router.learn, outcome)
            self._count(outcome.route)
            if self._epochs is not None and self._epochs.tick():
                await self._begin_epoch(self._epochs)
        except Exception as error:  # learning is never worth an answer
            self._failures += 1
            _log.warning("the router could not learn (%s)", type(error).__name__)

    def _count(self, route: Route) -> None:
        self._seen.requests += 1
        if route.shares:
            self._seen.routed += route.how == "routed"
            self._seen.named += route.how != "routed"

    async def _begin_epoch(self, epochs: EpochController) -> None:
        """Choose the resident set for the coming epoch, and ask the cache for it."""
        resident = [d for d in self._sizes() if self._cache.is_resident(d)]
        seen, self._seen = self._seen, _Epoch(rewards_before=self._router.rewards)
        plan = await asyncio.to_thread(self._planned, epochs, resident, seen)
        if plan is None:
            return
        self.plan = plan
        self._cache.prefer(plan.prefer)
        self._router.explore(dict(plan.explore))

    def _planned(
        self, epochs: EpochController, resident: Sequence[str], seen: _Epoch
    ) -> Plan | None:
        """A plan for the part of the memory that routed requests used; named ones have theirs."""
        outlook, sizes = self._router.outlook(), self._sizes()
        if outlook is None or not len(outlook.utilities):
            return None
        keep = [k for k, digest in enumerate(outlook.digests) if digest in sizes]
        digests = [outlook.digests[k] for k in keep]
        asked, told = seen.routed + seen.named, self._router.rewards - seen.rewards_before
        routed = seen.routed / asked if asked else 1.0
        load_s: Any = np.array([self._cache.load_ms(d) / 1000 for d in digests])
        return epochs.plan(
            digests=digests,
            utilities=outlook.utilities[:, keep],
            costs=self._miss_cost_per_s * load_s,
            n_bytes=[sizes[d] for d in digests],
            samples=[outlook.samples[k] for k in keep],
            budget_bytes=int(routed * self._cache.counters().budget_bytes),
            current=resident,
            told=min(1.0, told / max(seen.requests, 1)),
        )
