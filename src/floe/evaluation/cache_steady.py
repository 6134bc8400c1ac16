"""Hit rates after warm-up, miss ratios at equal sizes, and how long a decision takes."""

from __future__ import annotations

import time

import numpy as np

from floe.adapters.policies import make_policy
from floe.adapters.policy import Use
from floe.evaluation.cache_bound import belady_misses
from floe.evaluation.cache_cells import SERVEGEN_CLIENTS, made, static_best
from floe.evaluation.cache_generate import sized
from floe.evaluation.cache_simulate import simulate
from floe.evaluation.cache_sources import load_times, packed_servegen, servegen
from floe.evaluation.cache_trace import BYTES_PER_RANK, RANKS, Trace

POLICIES = ("lru", "lfu", "lfu-da", "gdsf", "s3-fifo", "sieve", "learned")


def steady_figures(n: int, seed: int) -> dict[str, float]:
    """Hit rates: Zipf 1.0, 50 of 200 equal adapters, second half; ServeGen, second day.

    The fixed set is the best of hindsight on the part that counts, one slot less for visitors.
    """
    zipf = made("zipf", n, seed, equal=True)
    two_days = two_days_of_servegen(n, seed)
    day_2 = int(np.searchsorted(two_days.at_s_T, 86_400))
    out: dict[str, float] = {}
    for label, trace, slots, warmup in (
        ("", zipf, 50, n // 2), ("_servegen", two_days, 10, day_2),
    ):  # fmt: skip
        budget = slots * int(trace.bytes_K[0])
        for name in ("learned", "lru", "lfu"):
            found = simulate(trace, policy=name, budget_bytes=budget, warmup=warmup)
            out[f"hit_rate_steady{label}_{name}"] = found.hit_rate
        out[f"hit_rate_steady{label}"] = out.pop(f"hit_rate_steady{label}_learned")
        tail = trace.part(warmup, len(trace))
        fixed = static_best(tail, budget_bytes=budget)
        found = simulate(tail, policy=fixed, budget_bytes=budget)
        out[f"hit_rate_steady{label}_fixed"] = found.hit_rate
        cold = slots  # the fixed set's own first loads are not held against it
        out[f"hit_rate_steady{label}_fixed"] += min(cold, found.misses) / len(tail)
        out[f"hit_rate_steady{label}_over_fixed"] = (
            out[f"hit_rate_steady{label}"] - out[f"hit_rate_steady{label}_fixed"]
        )
    return out


def two_days_of_servegen(n: int, seed: int) -> Trace:
    """43 equal adapters, Poisson gaps."""
    rates_CW, _ = packed_servegen()
    arrivals = servegen(rates_CW, np.ones_like(rates_CW), n=n, seed=seed)
    return sized(
        "servegen", arrivals, n_keys=SERVEGEN_CLIENTS, load_ms_of=load_times(), seed=seed,
        equal=True,
    )  # fmt: skip


def equal_size_figures(n: int, seed: int) -> dict[str, float]:
    """Miss ratios on two traces of equal adapters, with Belady's."""
    out = {}
    for label, trace, slots in (
        ("servegen_4_of_43", two_days_of_servegen(n, seed), 4),
        ("zipf_drift_20_of_200", made("zipf_drift", n, seed, equal=True), 20),
    ):
        for name in POLICIES:
            found = simulate(trace, policy=name, budget_bytes=slots * int(trace.bytes_K[0]))
            out[f"miss_ratio_{label}_{name}"] = 1 - found.hit_rate
        out[f"miss_ratio_{label}_belady"] = belady_misses(trace.key_T, slots) / len(trace)
    return out


def decision_figures(*, n_keys: int = 1000, width: int = 64, n: int = 2000) -> dict[str, float]:
    """Microseconds that the learned policy takes for a request, contexts and tenants included."""
    rng = np.random.default_rng(0)
    policy = make_policy("learned")
    share_K = 1 / np.arange(1, n_keys + 1) ** 0.8
    key_T = rng.choice(n_keys, size=n_keys + n, p=share_K / share_K.sum())
    key_T[:n_keys] = rng.permutation(n_keys)  # all are known
    bytes_K = rng.choice(RANKS, size=n_keys) * BYTES_PER_RANK
    context_TD = rng.normal(size=(len(key_T), width)).astype(np.float32)
    budget, used = int(bytes_K.sum()) // 4, 0
    resident: dict[str, int] = {}
    times_us, misses_us = [], []
    for t, key in enumerate(key_T.tolist()):
        use = Use(
            key=str(key), n_bytes=int(bytes_K[key]), load_ms=10.0, at_s=0.5 * t,
            tenant=f"t{key % 3}", context_D=context_TD[t],
        )  # fmt: skip
        start = time.perf_counter()
        hit = use.key in resident
        policy.used(use, resident=hit)
        if not hit:
            need = used + use.n_bytes - budget
            for gone in policy.victims(need, resident, at_s=use.at_s) if need > 0 else []:
                used -= resident.pop(gone)
                policy.evicted(gone)
            resident[use.key] = use.n_bytes
            used += use.n_bytes
            policy.admitted(use)
        took_us = 1e6 * (time.perf_counter() - start)
        if t >= n_keys:
            times_us.append(took_us)
            if not hit:
                misses_us.append(took_us)
    start = time.perf_counter()
    for _ in range(20):
        policy.likely(at_s=0.0, limit=8)
    return {
        "decision_us_p50": float(np.median(times_us)),
        "decision_us_p99": float(np.percentile(times_us, 99)),
        "decision_us_p50_miss": float(np.median(misses_us)),
        "likely_us": 1e6 * (time.perf_counter() - start) / 20,
        "decision_adapters": n_keys,
        "decision_context_width": width,
    }
