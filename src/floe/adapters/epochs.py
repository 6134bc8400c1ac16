"""When the resident set is chosen anew: epochs of fixed (POLAR) or doubling (POLAR+) length.

An epoch is counted in requests. At its end the controller plans from what the router expects of
each adapter: which to have in memory, and which to try because little is known of them. The plan
is carried out off the serving thread (`AdapterCache.prefer`, `Router.explore`).

Doubling needs only log2(T) changes in T requests; `longest` bounds an epoch, so that drift is
followed. With `quota` above 0, an epoch of length L asks for about sqrt(L) * quota tries in all, of
the adapters seen least, those below `enough` observations; one of them at a time is brought in.
Where nobody says how good answers are, nothing is tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from floe.adapters.resident_set import Problem, choose_set


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """`first` and `longest` in requests; `hysteresis` in utility per request."""

    kind: Literal["fixed", "doubling"] = "doubling"
    first: int = 64
    longest: int = 2048
    quota: float = 1.0
    enough: float = 8.0
    hysteresis: float = 0.002


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What should be in memory, by digest, most useful first; what that adds and lets go.

    `explore` gives each adapter to try its number of tries. `value` is F of the set.
    """

    prefer: tuple[str, ...]
    admit: tuple[str, ...]
    evict: tuple[str, ...]
    explore: tuple[tuple[str, int], ...]
    value: float
    epoch: int


class EpochController:
    """Counts requests and plans at the end of an epoch. Not thread-safe: one caller."""

    def __init__(self, settings: EpochSettings = EpochSettings()) -> None:
        self._settings = settings
        self.epoch, self._left = 0, settings.first

    @property
    def length(self) -> int:
        """Requests of the present epoch."""
        s = self._settings
        if s.kind == "fixed":
            return s.first
        return int(min(s.first * 2 ** min(self.epoch, 30), s.longest))

    def tick(self) -> bool:
        """One request was served; whether the epoch has ended and a plan is due."""
        self._left -= 1
        if self._left > 0:
            return False
        self.epoch += 1
        self._left = self.length
        return True

    def plan(
        self,
        *,
        digests: Sequence[str],
        utilities: NDArray[np.float64],
        costs: NDArray[np.float64],
        n_bytes: Sequence[int],
        samples: Sequence[float],
        budget_bytes: int,
        current: Collection[str],
        told: float = 1.0,
    ) -> Plan:
        """The set for the epoch that begins.

        `utilities` (T, K) over the base's and `costs` (K,) of a load are in one unit; `samples`
        say how much is known of each; `current` is what is in memory. `told`: of how many of the
        last answers, 0 to 1, anybody said how good they were; of the others a try learns nothing.
        """
        explore = self._explore(digests, samples, n_bytes, budget_bytes, told)
        tried = [digests.index(d) for d, _ in explore]
        tried_bytes = sum(n_bytes[k] for k in tried)
        now = frozenset(k for k, d in enumerate(digests) if d in current)
        found = choose_set(
            Problem(
                utilities=utilities, costs=costs, n_bytes=tuple(n_bytes),
                budget_bytes=budget_bytes - tried_bytes, current=now - set(tried),
                horizon=float(self.length), hysteresis=self._settings.hysteresis,
            )
        )  # fmt: skip
        members = found.members | set(tried)
        mean = np.maximum(utilities, 0.0).sum(axis=0)
        ordered = sorted(members, key=lambda k: (k in tried, -float(mean[k]), digests[k]))
        return Plan(
            prefer=tuple(digests[k] for k in ordered),
            admit=tuple(digests[k] for k in ordered if k not in now),
            evict=tuple(digests[k] for k in sorted(now - members)),
            explore=explore,
            value=found.value,
            epoch=self.epoch,
        )

    def _explore(
        self,
        digests: Sequence[str],
        samples: Sequence[float],
        n_bytes: Sequence[int],
        budget_bytes: int,
        told: float,
    ) -> tuple[tuple[str, int], ...]:
        """The one adapter seen least that takes at most half of the budget, and its tries."""
        s = self._settings
        pulls = round(s.quota * math.sqrt(self.length) * told)
        little = [
            k
            for k, seen in enumerate(samples)
            if seen < s.enough and n_bytes[k] * 2 <= budget_bytes
        ]
        if pulls < 1 or not little:
            return ()
        k = min(little, key=lambda k: (samples[k], digests[k]))
        return ((digests[k], min(pulls, math.ceil(s.enough - samples[k]))),)
