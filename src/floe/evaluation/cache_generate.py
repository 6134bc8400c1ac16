"""Made traces: Zipf with drift, cycles, bursts, days, and patterns that are bad for LRU.

Every function takes a seed and gives arrival times in seconds and keys as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from floe.evaluation.cache_trace import BYTES_PER_RANK, RANKS, LoadTimes, Trace, make_trace

Arrivals = tuple[NDArray[np.float64], NDArray[np.int64]]
_RANK_SHARES = (0.15, 0.25, 0.3, 0.2, 0.1)


def zipf(n: int, seed: int, *, n_keys: int = 200, exponent: float = 1.0) -> Arrivals:
    """Independent draws; the popularity never changes."""
    rng = np.random.default_rng(seed)
    share = _zipf_shares(n_keys, exponent)[rng.permutation(n_keys)]
    return _poisson_s(rng, n), rng.choice(n_keys, size=n, p=share)


def zipf_drift(n: int, seed: int, *, n_keys: int = 200, exponent: float = 1.0) -> Arrivals:
    """Zipf whose ranks change: each 1/40 of the trace a twentieth of the keys swap places."""
    rng = np.random.default_rng(seed)
    share = _zipf_shares(n_keys, exponent)
    place = rng.permutation(n_keys)
    keys = np.empty(n, dtype=np.int64)
    edges = np.linspace(0, n, 41).astype(int)
    for start, stop in pairwise(edges.tolist()):
        keys[start:stop] = rng.choice(n_keys, size=stop - start, p=share[place])
        moved = rng.choice(n_keys, size=max(n_keys // 20, 2), replace=False)
        place[moved] = place[rng.permutation(moved)]
    return _poisson_s(rng, n), keys


def round_robin(n: int, seed: int, *, n_keys: int = 60) -> Arrivals:
    """A fixed cycle over all keys with one request in twenty out of turn."""
    rng = np.random.default_rng(seed)
    keys = np.arange(n) % n_keys
    odd = rng.random(n) < 0.05
    keys[odd] = rng.integers(0, n_keys, odd.sum())
    return _poisson_s(rng, n), keys


def bursts(n: int, seed: int, *, n_keys: int = 150) -> Arrivals:
    """Keys wake, are asked for many times in a short while, and sleep again."""
    rng = np.random.default_rng(seed)
    share = _zipf_shares(n_keys, 0.6)[rng.permutation(n_keys)]
    times: list[NDArray[np.float64]] = []
    keys: list[NDArray[np.int64]] = []
    made = 0
    while made < n:
        size = 1 + rng.geometric(1 / 8)
        start = rng.random() * n
        gaps = rng.gamma(0.7, 12.0, size=size)
        times.append(start + np.cumsum(gaps))
        keys.append(np.full(size, rng.choice(n_keys, p=share)))
        made += size
    at_s, key = np.concatenate(times), np.concatenate(keys)
    first = np.argsort(at_s, kind="stable")[:n]
    return at_s[first], key[first]


def diurnal(n: int, seed: int, *, n_keys: int = 120) -> Arrivals:
    """Ten days; each key has its hours of the day."""
    rng = np.random.default_rng(seed)
    share = _zipf_shares(n_keys, 0.8)[rng.permutation(n_keys)]
    peak = rng.integers(0, 4, n_keys) * np.pi / 2 + rng.normal(0, 0.3, n_keys)
    at_s = np.sort(rng.random(n)) * 10 * 86_400
    phase = 2 * np.pi * at_s / 86_400
    keys = np.empty(n, dtype=np.int64)
    for i in range(n):
        weight = share * np.exp(2.0 * np.cos(phase[i] - peak))
        keys[i] = rng.choice(n_keys, p=weight / weight.sum())
    return at_s, keys


def scans(n: int, seed: int, *, n_keys: int = 160) -> Arrivals:
    """Bad for LRU: a popular core, and now and then a walk over keys that are asked for once."""
    rng = np.random.default_rng(seed)
    core = n_keys // 4
    share = _zipf_shares(core, 0.7)
    keys: list[int] = []
    while len(keys) < n:
        keys += rng.choice(core, size=int(rng.integers(60, 180)), p=share).tolist()
        start = int(rng.integers(core, n_keys))
        span = int(rng.integers(30, 90))
        keys += [core + (start + i) % (n_keys - core) for i in range(span)]
    return _poisson_s(rng, n), np.array(keys[:n])


def _zipf_shares(n_keys: int, exponent: float) -> NDArray[np.float64]:
    weight = 1.0 / np.arange(1, n_keys + 1) ** exponent
    return np.asarray(weight / weight.sum())


def _poisson_s(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Arrivals, two a second on average."""
    return np.cumsum(rng.exponential(0.5, size=n))


def sized(
    name: str,
    arrivals: Arrivals,
    *,
    n_keys: int,
    load_ms_of: LoadTimes,
    seed: int,
    equal: bool = False,
) -> Trace:
    """The arrivals with ranks 4 to 64 drawn for the keys, or rank 16 for all."""  # fmt: skip
    rng = np.random.default_rng([seed, 99])
    rank_K = np.full(n_keys, 16) if equal else rng.choice(RANKS, size=n_keys, p=_RANK_SHARES)
    bytes_K = rank_K.astype(np.int64) * BYTES_PER_RANK
    load_ms_K = np.array([load_ms_of(b) for b in bytes_K.tolist()])
    return make_trace(name, *arrivals, bytes_K=bytes_K, load_ms_K=load_ms_K)


GENERATORS: Mapping[str, tuple[Callable[..., Arrivals], int]] = {
    "zipf": (zipf, 200),
    "zipf_drift": (zipf_drift, 200),
    "round_robin": (round_robin, 60),
    "bursts": (bursts, 150),
    "diurnal": (diurnal, 120),
    "scans": (scans, 160),
}
"""Made traces by name, with the number of their keys."""
