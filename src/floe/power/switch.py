"""What a change of clocks costs here, measured at the start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from floe.power.base import Knobs

_SETTLE_S = 0.05
_POLL_S = 0.0005


def measure_switch_ms(
    knobs: Knobs,
    *,
    repeats: int = 5,
    clock_s: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Median milliseconds from asking for a neighbouring clock to reading it, by domain.

    A clock that never reads as asked within 50 ms counts as 50 ms. The clocks end as they were.
    Nothing is changed for knobs that only give advice: the result is empty.
    """
    if knobs.advice_only:
        return {}
    before = knobs.read()
    out: dict[str, float] = {}
    for domain in knobs.domains:
        if domain.name not in before or len(domain.steps_mhz) < 2:
            continue
        here = domain.nearest(before[domain.name])
        at = domain.steps_mhz.index(min(domain.steps_mhz, key=lambda s: abs(s - here)))
        there = domain.steps_mhz[at - 1 if at else at + 1]
        taken = []
        for n in range(2 * repeats):
            wanted = there if n % 2 == 0 else here
            started = clock_s()
            knobs.apply({domain.name: wanted})
            while clock_s() - started < _SETTLE_S and not _is(knobs, domain.name, wanted):
                sleep(_POLL_S)
            taken.append(1000 * (clock_s() - started))
        out[domain.name] = statistics.median(taken)
    return out


def _is(knobs: Knobs, name: str, mhz: float) -> bool:
    return abs(knobs.read().get(name, 0.0) - mhz) < 1.0
