"""What no policy can beat: the least cost with the whole trace known in advance.

T requests, I intervals between two uses of the same adapter. Keeping an adapter over an interval
saves one load. At each request in between, what is kept and the adapter served must fit the budget
(the served one must be in memory: no bypass). Equal sizes and costs: Belady's rule, exact. Else a
bound by the dual of the linear relaxation (PFOO-L of Berger et al., 2018, is its start, with one
price of memory for all times; subgradient steps then give each time its own price). Every price
vector gives a valid bound, so stopping early loosens it and never makes it wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.evaluation.cache_trace import Trace

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least total cost; `is_exact` for Belady, else a lower bound."""

    cost_ms: float
    is_exact: bool

    @property
    def method(self) -> str:
        """Its name in reports."""
        return "Belady" if self.is_exact else "LP dual"


def clairvoyant(
    trace: Trace, *, budget_bytes: int, steps: int = 400, is_warm: bool = False
) -> Bound:
    """The cost that no policy without bypass can go below.

    `is_warm`: whatever it holds before the first request.
    """
    if is_warm:
        return Bound(cost_ms=dual_cost_ms(trace, budget_bytes, steps, is_warm=True), is_exact=False)
    sizes, loads = set(trace.bytes_K.tolist()), set(trace.load_ms_K.tolist())
    if len(sizes) == 1 and len(loads) == 1:
        slots = budget_bytes // sizes.pop()
        misses = belady_misses(trace.key_T, slots) if slots else len(trace)
        return Bound(cost_ms=misses * loads.pop(), is_exact=True)
    return Bound(cost_ms=dual_cost_ms(trace, budget_bytes, steps), is_exact=False)


def next_use(key_T: Ints) -> Ints:
    """The index of the next request for the same key; T where there is none."""
    n = len(key_T)
    out = np.full(n, n, dtype=np.int64)
    seen: dict[int, int] = {}
    for t in range(n - 1, -1, -1):
        out[t] = seen.get(int(key_T[t]), n)
        seen[int(key_T[t])] = t
    return out


def belady_misses(key_T: Ints, slots: int) -> int:
    """Misses when the adapter used furthest in the future goes; equal sizes."""
    following = next_use(key_T)
    resident: dict[int, int] = {}
    misses = 0
    for t, key in enumerate(key_T.tolist()):
        if key not in resident:
            misses += 1
            if len(resident) >= slots:
                del resident[max(resident, key=resident.__getitem__)]
        resident[key] = int(following[t])
    return misses


def dual_cost_ms(trace: Trace, budget_bytes: int, steps: int, *, is_warm: bool = False) -> float:
    """A lower bound on the cost of any sizes and load times, ms.

    `is_warm`: adapters may be there before the first request, so first uses can be saved too.
    """
    size_T = trace.bytes_K[trace.key_T].astype(np.float64)
    total = float(trace.load_ms_K[trace.key_T].sum())
    fits_T = size_T <= budget_bytes
    room_T = np.where(fits_T, budget_bytes - size_T, budget_bytes)
    start_I = np.flatnonzero((next_use(trace.key_T) < len(trace)) & fits_T)
    end_I = next_use(trace.key_T)[start_I]
    if is_warm:
        first_K = np.sort(np.unique(trace.key_T, return_index=True)[1])
        first_K = first_K[fits_T[first_K]]
        start_I = np.concatenate([np.full(len(first_K), -1), start_I])
        end_I = np.concatenate([first_K, end_I])
    saved_I = trace.load_ms_K[trace.key_T[end_I]]
    bytes_I = size_T[end_I]
    possible = bytes_I <= _least_room(room_T, start_I + 1, end_I)
    start_I, end_I = start_I[possible], end_I[possible]
    saved_I, bytes_I = saved_I[possible], bytes_I[possible]
    free = end_I == start_I + 1
    least = float(saved_I[free].sum())
    busy = ~free
    most_saved = _dual(
        start_I[busy], end_I[busy], saved_I[busy], bytes_I[busy], room_T, steps=steps
    )
    return total - least - most_saved


def _least_room(room_T: Array, start_I: Ints, end_I: Ints) -> Array:
    """The minimum of room_T[start:end] for each interval; infinite where it is empty."""
    levels = [room_T]
    while 2 ** len(levels) <= len(room_T):
        last, half = levels[-1], 2 ** (len(levels) - 1)
        levels.append(np.minimum(last[:-half], last[half:]))
    length_I = end_I - start_I
    out = np.full(len(start_I), np.inf)
    for level, row in enumerate(levels):
        at = (length_I >= 2**level) & (length_I < 2 ** (level + 1))
        out[at] = np.minimum(row[start_I[at]], row[end_I[at] - 2**level])
    return out


def _dual(
    start_I: Ints, end_I: Ints, saved_I: Array, bytes_I: Array, room_T: Array, *, steps: int
) -> float:
    """The least value found of sum(price * room) + sum(max(0, saved - price of the interval))."""
    if not len(start_I):
        return 0.0
    scale = float(bytes_I.mean())
    bytes_I, room_T = bytes_I / scale, room_T / scale
    price_T = np.full(len(room_T), _one_price(start_I, end_I, saved_I, bytes_I, room_T))
    best, best_T = np.inf, price_T
    reach = 0.5 * float(price_T[0]) + 1e-9
    for step in range(steps + 1):
        sums = np.concatenate([[0.0], np.cumsum(price_T)])
        gain_I = saved_I - bytes_I * (sums[end_I] - sums[start_I + 1])
        value = float(price_T @ room_T + gain_I[gain_I > 0].sum())
        if value < best:
            best, best_T = value, price_T
        elif step % 20 == 19:
            price_T, reach = best_T, 0.7 * reach
        kept = gain_I > 0
        change = np.zeros(len(room_T) + 1)
        np.add.at(change, start_I[kept] + 1, bytes_I[kept])
        np.subtract.at(change, end_I[kept], bytes_I[kept])
        slope_T = room_T - np.cumsum(change[:-1])
        norm = float(np.abs(slope_T).mean())
        if norm == 0:
            break
        price_T = np.maximum(price_T - reach / np.sqrt(1 + step / 20) * slope_T / norm, 0.0)
    return best


def _one_price(start_I: Ints, end_I: Ints, saved_I: Array, bytes_I: Array, room_T: Array) -> float:
    """PFOO-L: the saving per byte and request at which memory is full on average."""
    area_I = bytes_I * (end_I - start_I - 1)
    order = np.argsort(-saved_I / area_I, kind="stable")
    filled = np.cumsum(area_I[order])
    at = int(np.searchsorted(filled, room_T.sum()))
    return 0.0 if at >= len(order) else float(saved_I[order[at]] / area_I[order[at]])
