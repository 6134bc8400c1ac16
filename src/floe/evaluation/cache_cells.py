"""The traces of `floe bench cache`, and which of them may be tuned on.

| trace | tuning | held out |
| --- | --- | --- |
| ServeGen | day 1 | day 2 |
| Mooncake | first half | second half |
| Azure LLM | code | conversation |
| made | seeds below 100 | seeds from 100 |

Ranks, and with them sizes and load times, are drawn from the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from floe.adapters.policies import Static
from floe.evaluation.cache_generate import GENERATORS, sized
from floe.evaluation.cache_simulate import simulate
from floe.evaluation.cache_sources import (
    azure,
    load_times,
    packed,
    packed_servegen,
    servegen,
)
from floe.evaluation.cache_trace import Trace

BUDGET_PERCENTS = (5, 10, 25, 50)
HELD_OUT_SEED = 100
MADE = ("zipf_drift", "round_robin", "bursts", "diurnal", "scans")
SERVEGEN_CLIENTS = 43


def traces(n: int, seed: int) -> Iterator[Trace]:
    """Every trace, about `n` requests each; seeds from 100 on give the held-out parts."""
    held_out = seed >= HELD_OUT_SEED
    for bursty in (False, True):
        yield servegen_trace(n, seed, bursty=bursty, held_out=held_out)
    yield _mooncake(n, seed, held_out=held_out)
    yield _azure(n, seed, held_out=held_out)
    for name in MADE:
        yield made(name, n, seed)


def servegen_trace(
    n: int, seed: int, *, bursty: bool = False, held_out: bool = True, equal: bool = False
) -> Trace:
    """One of the two days; Poisson gaps (requests thinned at random), or the measured variation."""
    rates_CW, variations_CW = packed_servegen()
    half = rates_CW.shape[1] // 2
    day = slice(half, None) if held_out else slice(0, half)
    rates_CW, variations_CW = rates_CW[:, day], variations_CW[:, day]
    if not bursty:
        variations_CW = np.ones_like(variations_CW)
    return sized(
        "servegen_bursty" if bursty else "servegen",
        servegen(rates_CW, variations_CW, n=n, seed=seed),
        n_keys=SERVEGEN_CLIENTS, load_ms_of=load_times(), seed=seed, equal=equal,
    )  # fmt: skip


def _mooncake(n: int, seed: int, *, held_out: bool) -> Trace:
    table = packed("mooncake")
    half = len(table["at_s"]) // 2
    part = slice(half, half + n) if held_out else slice(0, min(half, n))
    sessions, keys = np.unique(table["session"][part], return_inverse=True)
    return sized(
        "mooncake", (table["at_s"][part], keys), n_keys=len(sessions), load_ms_of=load_times(),
        seed=seed,
    )  # fmt: skip


def _azure(n: int, seed: int, *, held_out: bool) -> Trace:
    at_s_T = packed("azure_conv" if held_out else "azure_code")["at_s"][:n]
    shares_K = packed("azure_functions")["invocations"]
    return sized(
        "azure", azure(at_s_T, shares_K, seed=seed), n_keys=len(shares_K),
        load_ms_of=load_times(), seed=seed,
    )  # fmt: skip


def made(name: str, n: int, seed: int, *, equal: bool = False) -> Trace:
    """A made trace by name."""
    generate, n_keys = GENERATORS[name]
    return sized(
        name, generate(n, seed), n_keys=n_keys, load_ms_of=load_times(), seed=seed, equal=equal
    )


def budget_bytes(trace: Trace, percent: float) -> int:
    """A share of all adapters' bytes."""
    return int(trace.total_bytes * percent / 100)


def static_best(trace: Trace, *, budget_bytes: int, share: float = 1.0) -> Static:
    """The best fixed set of those tried, as seen in the first `share` of the trace.

    Adapters by load time saved per byte, filled up to the budget less room for visitors: none, one
    of mean size, one of the largest. With share 1 it is hindsight, which no policy has.
    """
    seen = trace.part(0, max(int(len(trace) * share), 1))
    uses_K = np.bincount(seen.key_T, minlength=len(trace.names))
    order = np.argsort(-uses_K * trace.load_ms_K / trace.bytes_K, kind="stable").tolist()
    tried = []
    for room in (0, int(trace.bytes_K.mean()), int(trace.bytes_K.max())):
        left, keep = budget_bytes - room, []
        for k in order:
            if uses_K[k] and trace.bytes_K[k] <= left:
                left -= int(trace.bytes_K[k])
                keep.append(trace.names[k])
        found = simulate(seen, policy=Static(keep), budget_bytes=budget_bytes)
        tried.append((found.cost_ms, room, keep))
    return Static(min(tried)[2])
