"""What is remembered of each adapter's uses, and the features a predictor sees.

N adapters known, n of them asked about, H horizons, F features, D width of the context. A tick is
one request. Everything is arrays over slots, so that a thousand adapters cost a few numpy calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.adapters.policy import Use

Array = NDArray[np.float64]
HORIZONS = (25.0, 100.0, 400.0, 1600.0, 6400.0, 25600.0)
FEATURES = (
    "bias", "horizon", "log_age", "rate_25", "rate_100", "rate_400", "rate_1600", "rate_6400",
    "rate_25600", "due", "overdue", "regular_due", "regular_early", "single", "few", "follows",
    "context", "tenant", "day", "week",
)  # fmt: skip
_SAVED = (
    "last_N", "uses_N", "gap_N", "spread_N", "load_ms_N", "bytes_N", "count_NH", "clock_N4",
    "tenant_N8",
)  # fmt: skip
_DAY_S = 86_400.0
_FIRST = 64
_SUCCESSORS = 8


class History:
    """Books of all adapters by slot."""

    def __init__(self) -> None:
        self.slot: dict[str, int] = {}
        self.keys: list[str | None] = []
        self.tick = 0
        self._free: list[int] = []
        self._horizon_H = np.array(HORIZONS)
        self._size = 0
        self._context_D: NDArray[np.float32] | None = None
        self._tenants: dict[str, int] = {}
        self._tenant = -1
        self._previous = -1
        self._follow: list[dict[int, float]] = []
        self._alloc(_FIRST)

    def _alloc(self, size: int) -> None:
        def grown(name: str, *shape: int) -> None:
            fresh = np.zeros((size, *shape))
            old = getattr(self, name, None)
            if old is not None:
                fresh[: len(old)] = old
            setattr(self, name, fresh)

        for name in ("last_N", "uses_N", "gap_N", "spread_N", "load_ms_N", "bytes_N"):
            grown(name)
        grown("count_NH", len(HORIZONS))
        grown("clock_N4", 4)
        grown("tenant_N8", 8)
        if self._context_D is not None:
            grown("centroid_ND", len(self._context_D))
        self._size = size

    last_N: Array
    uses_N: Array
    gap_N: Array
    spread_N: Array
    load_ms_N: Array
    bytes_N: Array
    count_NH: Array
    clock_N4: Array
    tenant_N8: Array
    centroid_ND: Array

    def place(self, use: Use) -> int:
        """The slot of an adapter, new if need be."""
        found = self.slot.get(use.key)
        if found is None:
            if self._free:
                found = self._free.pop()
                self.keys[found] = use.key
                self._follow[found] = {}
            else:
                found = len(self.keys)
                if found == self._size:
                    self._alloc(2 * self._size)
                self.keys.append(use.key)
                self._follow.append({})
            self.slot[use.key] = found
        self.load_ms_N[found] = use.load_ms
        self.bytes_N[found] = use.n_bytes
        return found

    def use(self, use: Use) -> int:
        """Count a use; the slot."""
        i = self.place(use)
        self.tick += 1
        age = self.tick - self.last_N[i]
        if self.uses_N[i] > 0:
            log_gap = math.log(age)
            share = max(0.2, 1.0 / self.uses_N[i])
            off = log_gap - self.gap_N[i]
            self.spread_N[i] += share * (abs(off) - self.spread_N[i])
            self.gap_N[i] += share * off
            self.count_NH[i] *= np.exp(-age / self._horizon_H)
        self.count_NH[i] += 1.0
        self.uses_N[i] += 1.0
        self.last_N[i] = self.tick
        self._learn_clock(i, use.at_s)
        self._learn_tenant(i, use.tenant)
        if self._previous >= 0 and self._previous != i:
            self._learn_order(self._previous, i)
        if use.context_D is not None:
            self._learn_context(i, use.context_D)
        self._previous = i
        return i

    def _learn_clock(self, i: int, at_s: float) -> None:
        share = max(0.02, 1.0 / self.uses_N[i])
        self.clock_N4[i] += share * (_clock(at_s) - self.clock_N4[i])

    def _learn_tenant(self, i: int, tenant: str) -> None:
        self._tenant = self._tenants.setdefault(tenant, len(self._tenants)) % 8
        row = self.tenant_N8[i]
        row *= 0.98
        row[self._tenant] += 0.02

    def _learn_order(self, before: int, i: int) -> None:
        row = self._follow[before]
        for other in row:
            row[other] *= 0.8
        row[i] = row.get(i, 0.0) + 0.2
        if len(row) > _SUCCESSORS:
            del row[min(row, key=row.__getitem__)]

    def _learn_context(self, i: int, context_D: NDArray[np.float32]) -> None:
        if self._context_D is None or len(self._context_D) != len(context_D):
            self._context_D = np.zeros(len(context_D), dtype=np.float32)
            self.centroid_ND = np.zeros((self._size, len(context_D)))
        norm = float(np.linalg.norm(context_D))
        unit_D = context_D / norm if norm > 0 and math.isfinite(norm) else self._context_D * 0
        self.centroid_ND[i] += max(0.05, 1.0 / self.uses_N[i]) * (unit_D - self.centroid_ND[i])
        self._context_D = 0.7 * self._context_D + 0.3 * unit_D

    def drop(self, key: str) -> int | None:
        """Forget an adapter; its slot, which is used again, or None."""
        i = self.slot.pop(key, None)
        if i is None:
            return None
        for name in _SAVED:
            getattr(self, name)[i] = 0.0
        if self._context_D is not None:
            self.centroid_ND[i] = 0.0
        for row in self._follow:
            row.pop(i, None)
        self._follow[i] = {}
        self.keys[i] = None
        self._free.append(i)
        if self._previous == i:
            self._previous = -1
        return i

    def state(self) -> dict[str, object]:
        """Plain values; contexts and the order of uses are learned anew."""
        slots = list(self.slot.values())
        return {
            "tick": self.tick,
            "keys": list(self.slot),
            "tenants": list(self._tenants),
            **{name: getattr(self, name)[slots].tolist() for name in _SAVED},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; raises KeyError, TypeError or ValueError."""
        keys = [str(key) for key in state["keys"]]
        if len(set(keys)) != len(keys):
            raise ValueError("keys")
        self._alloc(max(_FIRST, len(keys)))
        for name in _SAVED:
            rows = np.asarray(state[name], dtype=np.float64)
            target = getattr(self, name)
            if len(keys) and (rows.shape != (len(keys), *target.shape[1:])):
                raise ValueError(name)
            if not np.isfinite(rows).all():
                raise ValueError(name)
            if len(keys):
                target[: len(keys)] = rows
        self.tick = int(state["tick"])
        if self.tick < 0 or (self.last_N > self.tick).any() or (self.uses_N < 0).any():
            raise ValueError("tick")
        self.keys, self.slot = list(keys), {key: i for i, key in enumerate(keys)}
        self._follow = [{} for _ in keys]
        self._tenants = {str(name): i for i, name in enumerate(state["tenants"])}

    def rates(self, at_n: NDArray[np.int64]) -> Array:
        """Uses per tick at each horizon."""
        age_n1 = (self.tick - self.last_N[at_n])[:, None]
        seen_H = self._horizon_H * -np.expm1(-max(self.tick, 1) / self._horizon_H)
        return np.asarray(self.count_NH[at_n] * np.exp(-age_n1 / self._horizon_H) / seen_H)

    def features(self, at_n: NDArray[np.int64], at_s: float, *, horizon: int = 1) -> Array:
        """What a predictor sees of each."""
        x = np.zeros((len(FEATURES), len(at_n))).T  # each feature lies together
        uses = self.uses_N[at_n]
        log_age = np.log(self.tick - self.last_N[at_n] + 1.0)
        x[:, 0] = 1.0
        x[:, 1] = math.log(horizon) - 5.0
        x[:, 2] = log_age - 4.0
        x[:, 3:9] = np.log(self.rates(at_n) + 1e-5) + 5.0
        off = log_age - self.gap_N[at_n]
        spread = self.spread_N[at_n] + 0.15
        many = uses > 2
        x[:, 9] = np.clip(off, -3, 0) * many
        x[:, 10] = np.clip(off, 0, 3) * many
        sharp = np.clip(off / spread, -4, 4) * many
        x[:, 11] = np.exp(-0.5 * (sharp + 0.5) ** 2) * many / (spread + 0.5)
        x[:, 12] = np.minimum(sharp + 1.0, 0.0) * many / (spread + 0.5)
        x[:, 13] = uses <= 1
        x[:, 14] = np.exp(-0.5 * uses)
        if self._previous >= 0 and self._follow[self._previous]:
            full = np.zeros(self._size)
            row = self._follow[self._previous]
            full[list(row)] = list(row.values())
            x[:, 15] = full[at_n]
        if self._context_D is not None:
            x[:, 16] = self.centroid_ND[at_n] @ self._context_D
        if len(self._tenants) > 1:
            x[:, 17] = self.tenant_N8[at_n, self._tenant] - 0.3
        clock = self.clock_N4[at_n] * _clock(at_s)
        sure = np.minimum(uses / 20.0, 1.0)
        x[:, 18] = 2.0 * (clock[:, 0] + clock[:, 1]) * sure
        x[:, 19] = 2.0 * (clock[:, 2] + clock[:, 3]) * sure
        return x


def _clock(at_s: float) -> Array:
    """Time of the day and of the week on two circles; nowhere if the time is no number."""
    if not math.isfinite(at_s):
        return np.zeros(4)
    day, week = 2 * math.pi * at_s / _DAY_S, 2 * math.pi * at_s / (7 * _DAY_S)
    return np.array([math.cos(day), math.sin(day), math.cos(week), math.sin(week)])
