"""The learner: V = chance of a use soon * load time / bytes, for every adapter.

The chance comes from three logistic models, one for each of three horizons around the time an
adapter stays in memory; each gives a rate, -log(1 - p) / horizon, and the rates are averaged, so
that neither a short burst nor a long habit alone decides. N adapters, n asked about, F features.
"""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.adapters.policies.books import Books, strangers_in
from floe.adapters.policies.history import Array, History
from floe.adapters.policies.predictor import Predictor, shipped_priors
from floe.adapters.policy import Use

SHARES = (0.25, 1.0, 4.0)
"""Horizons as shares of the time an adapter stays unused before it is evicted."""
SOON = 8
"""Ticks ahead that a prefetch looks."""
_EVERY = 8
_EXAMPLES = 8
_LEAST_LIFE, _MOST_LIFE = 16.0, 8192.0
_SURE = 1.0 - 1e-9
_SPARE = 0.7


class Value(Books):
    """Victims by the least value; nothing else."""

    name = "value"

    def __init__(self, *, seed: int = 7) -> None:
        self.history = History()
        self.predictors = _predictors()
        self.life = 64.0
        self._rng = np.random.default_rng(seed)
        self._resident: dict[str, int] = {}
        self._value_N: Array = np.zeros(0)
        self._scored_N: Array = np.zeros(0)
        self._asked: tuple[int, int, Mapping[str, int]] = (-1, 0, {})
        self._answer: list[str] = []

    # --- learning

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        self.history.use(use)
        if self.history.tick % _EVERY == 0:
            self._study(use.at_s)

    def _study(self, at_s: float) -> None:
        """Learn from examples that are due, set new ones: any adapter, and any in memory.

        Those prefetched and never asked for too, else nothing says what they are worth.
        """
        tick, last_N = self.history.tick, self.history.last_N
        for predictor in self.predictors:
            predictor.learn(tick, last_N)
        known = len(self.history.keys)
        slots_B = self._rng.integers(0, known, _EXAMPLES)
        if self._resident:
            here = np.fromiter(self._resident.values(), dtype=np.int64, count=len(self._resident))
            slots_B = np.concatenate([slots_B, self._rng.choice(here, _EXAMPLES)])
        slots_B = slots_B[self.history.bytes_N[slots_B] > 0]
        if not len(slots_B):
            return
        x_BF = self.history.features(slots_B, at_s)
        for predictor, horizon in zip(self.predictors, self.horizons(), strict=True):
            predictor.ask(tick, tick + horizon, slots_B, _seen_from(x_BF, horizon))

    def horizons(self) -> list[int]:
        """In ticks, multiples of the pace of study; the scale is a power of two."""
        life = 2.0 ** round(math.log2(self.life))
        steps = [max(_EVERY, int(life * share) // _EVERY * _EVERY) for share in SHARES]
        return [*steps, SOON]

    # --- deciding

    def chances(self, slots_n: NDArray[np.int64], at_s: float) -> list[Array]:
        """Probability of a use within each horizon."""
        x_nF = self.history.features(slots_n, at_s)
        found = []
        for predictor, horizon in zip(self.predictors[:-1], self.horizons()[:-1], strict=True):
            x_nF[:, 1] = _seen(horizon)
            found.append(predictor.probability_n(x_nF))
        return found

    def values(self, slots_n: NDArray[np.int64], at_s: float) -> Array:
        """Saved milliseconds per tick and byte; each adapter is computed once a tick."""
        if len(self._value_N) < len(self.history.last_N):
            size = len(self.history.last_N)
            self._value_N, self._scored_N = np.zeros(size), np.full(size, -1.0)
        stale_n = slots_n[self._scored_N[slots_n] != self.history.tick]
        if len(stale_n):
            rate_n = np.zeros(len(stale_n))
            for p_n, horizon in zip(self.chances(stale_n, at_s), self.horizons()[:-1], strict=True):
                rate_n -= np.log1p(-np.minimum(p_n, _SURE)) / horizon
            history = self.history
            worth_n = history.load_ms_N[stale_n] / np.maximum(history.bytes_N[stale_n], 1.0)
            self._value_N[stale_n] = rate_n * worth_n
            self._scored_N[stale_n] = history.tick
        return self._value_N[slots_n]

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        if need_bytes <= 0:
            return []
        asked = (self.history.tick, need_bytes, evictable)
        if asked != self._asked:  # the guard's ghost often has just asked the same
            self._answer = self._choose(need_bytes, evictable, at_s)
            self._asked = (self.history.tick, need_bytes, dict(evictable))
        return list(self._answer)

    def _choose(self, need_bytes: int, evictable: Mapping[str, int], at_s: float) -> list[str]:
        slot = self.history.slot
        strangers = strangers_in(evictable, slot)
        known = [key for key in evictable if key in slot] if strangers else list(evictable)
        slots_n = np.array(list(map(slot.__getitem__, known)), dtype=np.int64)
        value_n = self.values(slots_n, at_s)
        if strangers:
            order_n = np.argsort(value_n, kind="stable")
            return enough(strangers + [known[j] for j in order_n.tolist()], need_bytes, evictable)
        sizes_n = np.array(list(evictable.values()), dtype=np.float64)
        return [known[j] for j in cheapest(value_n, sizes_n, need_bytes)]

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        self._resident[use.key] = self.history.place(use)

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        slot = self._resident.pop(key, None)
        if slot is not None:
            stayed = self.history.tick - self.history.last_N[slot]
            self.life += 0.02 * (stayed - self.life)
            self.life = min(max(self.life, _LEAST_LIFE), _MOST_LIFE)

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._resident.pop(key, None)
        self._asked = (-1, 0, {})
        slot = self.history.drop(key)
        if slot is not None:
            for predictor in self.predictors:
                predictor.drop(slot)
            if slot < len(self._scored_N):
                self._scored_N[slot] = -1.0

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        """By expected saving, with the chance of a use within `SOON` requests."""
        keys = list(self.history.slot)
        if not keys or limit <= 0:
            return ()
        slots_n = np.fromiter(self.history.slot.values(), dtype=np.int64, count=len(keys))
        x_nF = _seen_from(self.history.features(slots_n, at_s), SOON)
        p_n = self.predictors[-1].probability_n(x_nF)
        order_n = np.argsort(-p_n * self.history.load_ms_N[slots_n], kind="stable")[:limit]
        return [(keys[j], float(p_n[j])) for j in order_n.tolist()]

    # --- keeping

    def state(self) -> dict[str, object]:
        """Books and weights."""
        return {
            "life": self.life,
            "history": self.history.state(),
            "predictors": [p.state() for p in self.predictors],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state; raises KeyError, TypeError or ValueError if it is not sound."""
        life = float(state["life"])
        if not _LEAST_LIFE <= life <= _MOST_LIFE:
            raise ValueError("life")
        if len(state["predictors"]) != len(self.predictors):
            raise ValueError("predictors")
        history = History()
        history.restore(state["history"])
        predictors = _predictors()
        for predictor, saved in zip(predictors, state["predictors"], strict=True):
            predictor.restore(saved)
        self.life, self.history, self.predictors = life, history, predictors
        self._value_N = self._scored_N = np.zeros(0)
        self._asked = (-1, 0, {})
        self._resident = {key: history.slot[key] for key in self._resident if key in history.slot}


def _predictors() -> list[Predictor]:
    """One for each horizon that values are made of, and the near one."""
    return [Predictor(prior) for prior in shipped_priors()]


def _seen(horizon: int) -> float:
    return math.log(horizon) - 5.0


def _seen_from(x_nF: Array, horizon: int) -> Array:
    """The features with the horizon filled in."""
    x_nF = x_nF.copy()
    x_nF[:, 1] = _seen(horizon)
    return x_nF


def cheapest(value_n: Array, bytes_n: Array, need_bytes: int) -> list[int]:
    """Which to free: those of least value for their bytes, or one alone where that loses less.

    What is freed beyond the need is worth `_SPARE` of the last victim's value for its bytes.
    """
    order_n = np.argsort(value_n, kind="stable")
    last = int(np.searchsorted(np.cumsum(bytes_n[order_n]), need_bytes))
    if last >= len(order_n):
        return [int(j) for j in order_n]
    spare = _SPARE * value_n[order_n[last]]
    left = float(bytes_n[order_n[: last + 1]].sum())
    several: list[int] = []
    for j in order_n[last::-1].tolist():  # the dearest first: what need not go stays
        if several and left - bytes_n[j] >= need_bytes:
            left -= float(bytes_n[j])
        else:
            several.append(j)
    several.reverse()
    lost = float((value_n[several] * bytes_n[several]).sum() - spare * (left - need_bytes))
    lost_n = value_n * bytes_n - spare * (bytes_n - need_bytes)
    alone = int(np.where(bytes_n >= need_bytes, lost_n, np.inf).argmin())
    return [alone] if bytes_n[alone] >= need_bytes and lost_n[alone] < lost else several


def enough(order: Sequence[str], need_bytes: int, sizes: Mapping[str, int]) -> list[str]:
    """Keys from the front until `need_bytes` are reached, without those that were not needed."""
    found: list[str] = []
    got = 0
    for key in order:
        if got >= need_bytes:
            break
        found.append(key)
        got += sizes[key]
    for key in reversed(found[:-1]):
        if got - sizes[key] >= need_bytes:
            found.remove(key)
            got -= sizes[key]
    return found
