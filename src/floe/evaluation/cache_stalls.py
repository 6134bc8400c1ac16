"""How long requests wait for adapters: an event simulation with one loader.

Requests queue in order of arrival for a few lanes. One that has a lane waits there until its
adapter is in memory: that is its stall. The loader loads one adapter at a time, without breaking
off: first what requests in lanes and in the queue need, in their order (queue-driven prefetch).
When nobody needs anything, and it is allowed, it loads what the policy thinks likely (predicted
prefetch), if the saving expected exceeds that of the victims by a margin; while there is free room
it fills it with registered adapters, those never asked for too, the dearest for their bytes first.
Adapters of running requests and of the first of the queue are pinned, and so is a load on its way.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from floe.adapters.policy import ReplacementPolicy, Use
from floe.evaluation.cache_simulate import uses
from floe.evaluation.cache_trace import Trace

LANES = 4
SERVICE_S = 0.4
LOOK_AHEAD = 8
MOST_PREFETCHES = 4
MARGIN = 1.1


@dataclass(frozen=True, kw_only=True)
class Stalled:
    """Totals of one run; the counters of prefetches are of predicted ones."""

    policy: str
    requests: int
    stall_ms: float
    stall_ms_per_request: float
    stalled: int
    loads: int
    prefetched: int
    prefetch_used: int
    prefetch_wasted: int


@dataclass(kw_only=True, eq=False)
class _Request:
    use: Use
    service_s: float
    lane_at_s: float = 0.0


@dataclass(kw_only=True)
class _Run:
    """The state of one simulation."""

    policy: ReplacementPolicy
    budget_bytes: int
    is_predicting: bool
    resident: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0
    queue: deque[_Request] = field(default_factory=deque)
    waiting: list[_Request] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    free_lanes: int = LANES
    loading: Use | None = None
    events: list[tuple[float, int, str, _Request | None]] = field(default_factory=list)
    order: int = 0
    known: dict[str, Use] = field(default_factory=dict)
    untried: deque[Use] = field(default_factory=deque)
    unused: set[str] = field(default_factory=set)
    allowance: int = 0
    stall_ms: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def push(self, at_s: float, what: str, request: _Request | None = None) -> None:
        self.order += 1
        heapq.heappush(self.events, (at_s, self.order, what, request))


def simulate_stalls(
    trace: Trace,
    *,
    policy: ReplacementPolicy,
    budget_bytes: int,
    predicted_prefetch: bool = False,
    seed: int = 7,
) -> Stalled:
    """Run the trace; service times are drawn from `seed`, the same for every policy."""
    rng = np.random.default_rng(seed)
    service_s = rng.lognormal(np.log(SERVICE_S) - 0.32, 0.8, size=len(trace)).tolist()
    run = _Run(policy=policy, budget_bytes=budget_bytes, is_predicting=predicted_prefetch)
    run.untried.extend(sorted(_registered(trace), key=lambda u: -u.load_ms / u.n_bytes))
    for use, duration_s in zip(uses(trace), service_s, strict=True):
        run.push(use.at_s, "arrival", _Request(use=use, service_s=duration_s))
    while run.events:
        at_s, _, what, request = heapq.heappop(run.events)
        _handle(run, at_s, what, request)
        _advance(run, at_s)
    n = len(trace)
    return Stalled(
        policy=policy.name, requests=n, stall_ms=run.stall_ms,
        stall_ms_per_request=run.stall_ms / max(n, 1), stalled=run.counts["stalled"],
        loads=run.counts["loads"], prefetched=run.counts["prefetched"],
        prefetch_used=run.counts["used"], prefetch_wasted=run.counts["wasted"] + len(run.unused),
    )  # fmt: skip


def _registered(trace: Trace) -> list[Use]:
    """Every adapter of the trace, as its store would list it before the first request."""
    return [
        Use(key=key, n_bytes=n_bytes, load_ms=load_ms, at_s=0.0)
        for key, n_bytes, load_ms in zip(
            trace.names, trace.bytes_K.tolist(), trace.load_ms_K.tolist(), strict=True
        )
    ]


def _handle(run: _Run, at_s: float, what: str, request: _Request | None) -> None:
    if what == "arrival" and request is not None:
        use = request.use
        run.known[use.key] = use
        held = use.key in run.resident
        run.policy.used(use, resident=held)
        run.allowance = MOST_PREFETCHES
        if use.key in run.unused:
            run.unused.discard(use.key)
            run.counts["used"] += 1
        run.queue.append(request)
    elif what == "loaded":
        run.loading = None
        if request is not None:  # too big to keep: loaded for this request alone
            run.waiting.remove(request)
            _start(run, at_s, request)
    elif what == "done" and request is not None:
        run.free_lanes += 1
        run.running[request.use.key] -= 1


def _advance(run: _Run, at_s: float) -> None:
    """Give lanes, start what is ready, keep the loader busy."""
    while run.queue and run.free_lanes > 0:
        request = run.queue.popleft()
        request.lane_at_s = at_s
        run.free_lanes -= 1
        run.waiting.append(request)
    for request in [r for r in run.waiting if _is_ready(run, r.use.key)]:
        run.waiting.remove(request)
        _start(run, at_s, request)
    if run.loading is None:
        _load(run, at_s)


def _is_ready(run: _Run, key: str) -> bool:
    return key in run.resident and (run.loading is None or run.loading.key != key)


def _start(run: _Run, at_s: float, request: _Request) -> None:
    stall_ms = 1000 * (at_s - request.lane_at_s)
    run.stall_ms += stall_ms
    run.counts["stalled"] += stall_ms > 0
    run.running[request.use.key] += 1
    run.push(at_s + request.service_s, "done", request)


def _load(run: _Run, at_s: float) -> None:
    """Start the next load, if any is needed and there is room."""
    for request in run.waiting:
        if request.use.n_bytes > run.budget_bytes:
            run.loading = request.use
            run.counts["loads"] += 1
            run.push(at_s + request.use.load_ms / 1000, "loaded", request)
            return
    ahead = [r.use for r in run.waiting] + [r.use for r in list(run.queue)[:LOOK_AHEAD]]
    wanted = [u for u in ahead if u.key not in run.resident and u.n_bytes <= run.budget_bytes]
    for use in wanted[:1]:
        if _bring(run, at_s, use, pinned={u.key for u in ahead}):
            return
    if not wanted and run.is_predicting and not _fill(run, at_s) and run.allowance > 0:
        _predict(run, at_s, pinned={u.key for u in ahead})


def _fill(run: _Run, at_s: float) -> bool:
    """Load a registered adapter that nobody has asked for into room that is free."""
    while run.untried:
        use = run.untried[0]
        if use.key not in run.known and use.key not in run.resident:
            if run.n_bytes + use.n_bytes > run.budget_bytes:
                return False
            _bring(run, at_s, use, pinned=set(), prefetched=True)
            run.unused.add(use.key)
            run.counts["prefetched"] += 1
        run.untried.popleft()
        if run.loading is not None:
            return True
    return False


def _evictable(run: _Run, pinned: set[str]) -> dict[str, int]:
    return {k: b for k, b in run.resident.items() if not run.running.get(k) and k not in pinned}


def _bring(run: _Run, at_s: float, use: Use, *, pinned: set[str], prefetched: bool = False) -> bool:
    """Evict and begin the load; False if what is pinned leaves no room."""
    need = run.n_bytes + use.n_bytes - run.budget_bytes
    if need > 0:
        evictable = _evictable(run, pinned - {use.key})
        if sum(evictable.values()) < need:
            # What the queue will need later gives way to what is needed first.
            evictable = _evictable(run, {r.use.key for r in run.waiting})
            if prefetched or sum(evictable.values()) < need:
                return False
        for key in run.policy.victims(need, evictable, at_s=at_s):
            run.n_bytes -= run.resident.pop(key)
            run.policy.evicted(key)
            if key in run.unused:
                run.unused.discard(key)
                run.counts["wasted"] += 1
    run.resident[use.key] = use.n_bytes
    run.n_bytes += use.n_bytes
    run.policy.admitted(use, prefetched=prefetched)
    run.loading = use
    run.counts["loads"] += 1
    run.push(at_s + use.load_ms / 1000, "loaded")
    return True


def _predict(run: _Run, at_s: float, *, pinned: set[str]) -> None:
    """Load the likeliest adapter that is worth more than what has to go for it."""
    chances = run.policy.likely(at_s=at_s, limit=len(run.known))
    worth = {k: p * run.known[k].load_ms for k, p in chances if k in run.known}
    evictable = _evictable(run, pinned)
    for key in [k for k in worth if k not in run.resident][:MOST_PREFETCHES]:
        use = run.known[key]
        need = run.n_bytes + use.n_bytes - run.budget_bytes
        if use.n_bytes > run.budget_bytes or sum(evictable.values()) < need:
            continue
        gone = run.policy.victims(need, evictable, at_s=at_s) if need > 0 else []
        if worth[key] <= MARGIN * sum(worth.get(k, 0.0) for k in gone):
            continue
        if _bring(run, at_s, use, pinned=pinned, prefetched=True):
            run.allowance -= 1
            run.unused.add(key)
            run.counts["prefetched"] += 1
            return
    run.allowance = 0
