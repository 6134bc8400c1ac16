"""What a replacement policy costs on a trace: misses, load time, evictions.

One rule for every policy: the adapter asked for must be in memory while it is served, so there is
no bypass; a policy may name the adapter just served as the next victim. An adapter bigger than
the whole budget is loaded for its request alone: it counts as a miss and evicts nothing (F01).
"""

from __future__ import annotations

from dataclasses import dataclass

from floe.adapters.policies import make_policy
from floe.adapters.policy import ReplacementPolicy, Use
from floe.core.errors import BadRequest
from floe.evaluation.cache_trace import Trace


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Totals of one run, without its first `warmup` requests.

    `cost_ms` is the load time of all misses; `stall_ms` is what requests waited (the same without
    an event simulation). `curve` holds (requests so far, mean cost in ms of the last stretch).
    """

    policy: str
    requests: int
    hits: int
    misses: int
    cost_ms: float
    stall_ms: float
    evictions: int
    evicted_bytes: int
    hit_rate: float
    cost_ms_per_request: float
    curve: tuple[tuple[int, float], ...]


def simulate(
    trace: Trace,
    *,
    policy: str | ReplacementPolicy = "learned",
    budget_bytes: int,
    seed: int = 7,
    warmup: int = 0,
    points: int = 20,
) -> Simulated:
    """Run the trace through one cache of `budget_bytes`.

    Raises:
        BadConfig: no policy of that name. BadRequest: a budget that is not positive.
        RuntimeError: the policy names a victim that is not there, or too few.
    """
    if budget_bytes <= 0:
        raise BadRequest(f"the budget must be more than 0 bytes, not {budget_bytes}")
    rule = make_policy(policy, seed=seed) if isinstance(policy, str) else policy
    cache = _Cache(rule, budget_bytes)
    costs = [cache.request(use) for use in uses(trace)]
    kept = costs[warmup:]
    cost_ms = sum(kept)
    misses = sum(c > 0 for c in kept)
    n = len(kept)
    return Simulated(
        policy=rule.name, requests=n, hits=n - misses, misses=misses, cost_ms=cost_ms,
        stall_ms=cost_ms, evictions=cache.evictions, evicted_bytes=cache.evicted_bytes,
        hit_rate=(n - misses) / n if n else 0.0, cost_ms_per_request=cost_ms / n if n else 0.0,
        curve=_curve(costs, points),
    )  # fmt: skip


def uses(trace: Trace) -> list[Use]:
    """The trace as what a policy is told."""
    sizes, loads = trace.bytes_K.tolist(), trace.load_ms_K.tolist()
    return [
        Use(key=trace.names[k], n_bytes=sizes[k], load_ms=loads[k], at_s=t)
        for k, t in zip(trace.key_T.tolist(), trace.at_s_T.tolist(), strict=True)
    ]


def _curve(costs: list[float], points: int) -> tuple[tuple[int, float], ...]:
    step = max(len(costs) // max(points, 1), 1)
    starts = range(0, len(costs) - step + 1, step)
    return tuple((s + step, sum(costs[s : s + step]) / step) for s in starts)


class _Cache:
    """Bytes of one budget; checks the policy at each step."""

    def __init__(self, policy: ReplacementPolicy, budget_bytes: int) -> None:
        self._policy, self._budget = policy, budget_bytes
        self._resident: dict[str, int] = {}
        self._used = 0
        self.evictions = 0
        self.evicted_bytes = 0

    def request(self, use: Use) -> float:
        """Serve one request; what it cost, ms."""
        resident = use.key in self._resident
        self._policy.used(use, resident=resident)
        if resident:
            return 0.0
        if use.n_bytes > self._budget:
            return use.load_ms
        need = self._used + use.n_bytes - self._budget
        if need > 0:
            for key in self._policy.victims(need, self._resident, at_s=use.at_s):
                n_bytes = self._resident.pop(key, None)
                if n_bytes is None:
                    raise RuntimeError(f"policy {self._policy.name!r} evicts {key!r}, not here")
                self._used -= n_bytes
                self._policy.evicted(key)
                self.evictions += 1
                self.evicted_bytes += n_bytes
        self._resident[use.key] = use.n_bytes
        self._used += use.n_bytes
        if self._used > self._budget:
            raise RuntimeError(f"policy {self._policy.name!r} frees too little")
        self._policy.admitted(use)
        return use.load_ms
