"""The learned policy: the learner where it is best, else the simple policy that is.

Experts: the learner and the simple policies, each with a ghost cache that shows what it would
have paid. One is followed. Another takes over when the followed one has paid more than it by the
price of the change (the load time of what the other holds and we do not) times a margin that
grows with each change. So each change is paid by a loss that was seen, changes become rare, and
the regret against the best expert stays bounded by what the changes cost.

Following a simple policy means: evict what its ghost does not hold, the least valuable first. A
ghost fits the budget, so that always frees enough unless leases are in the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from floe.adapters.policies.books import Books
from floe.adapters.policies.caution import Caution
from floe.adapters.policies.ghost import Ghost
from floe.adapters.policies.lfu import Gdsf, Lfu, LfuDa
from floe.adapters.policies.lru import Lru
from floe.adapters.policies.s3fifo import S3Fifo
from floe.adapters.policies.sieve import Sieve
from floe.adapters.policies.value import Value, enough
from floe.adapters.policy import ReplacementPolicy, Use
from floe.core.errors import BadConfig

VERSION = 2
MARGIN = 6.0
GROWTH = 1.5
SLACK = 0.02
_LEAST_LOADS = 4
_FRESH_TICKS = 32


class Learned(Books):
    """See the module. `is_guarded=False` is the learner alone."""

    name = "learned"

    def __init__(self, *, seed: int = 7, is_guarded: bool = True) -> None:
        self._value = Value(seed=seed)
        simple: list[ReplacementPolicy] = [Gdsf(), Lfu(), Lru(), Sieve(), LfuDa(), S3Fifo()]
        self._ghosts = [Ghost(self._value), *(Ghost(p) for p in simple if is_guarded)]
        self._lead = 0
        self._behind_ms = [0.0] * len(self._ghosts)
        self._margin = MARGIN
        self._budget_bytes: int | None = None
        self._resident: dict[str, int] = {}
        self._fresh: dict[str, int] = {}
        self._caution = Caution()
        self._n_bytes = 0
        self._asked: Use | None = None
        self._load_ms: dict[str, float] = {}
        self._mean_ms = 0.0
        self.changes = 0
        self.change_cost_ms = 0.0

    @property
    def following(self) -> str:
        """The expert in charge."""
        return self._ghosts[self._lead].policy.name

    # --- the books

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        use = _sound(use)
        self._asked = use
        self._mean_ms += (use.load_ms - self._mean_ms) / min(self._value.history.tick + 1, 200)
        self._load_ms[use.key] = use.load_ms
        self._fresh.pop(use.key, None)
        self._caution.used(use, resident=resident, within=self._value.life)
        for ghost in self._ghosts:
            ghost.request(use, self._budget_bytes)
        self._judge()

    def _judge(self) -> None:
        """Compare the followed expert with the others, and change if one is clearly better."""
        lead_ms = self._ghosts[self._lead].loss_ms
        best, most = self._lead, 0.0
        for e, ghost in enumerate(self._ghosts):
            # The learner is given the benefit of the doubt: a loss within SLACK is noise.
            slack = 1.0 if e == 0 else 1.0 - SLACK
            behind = max(self._behind_ms[e] + slack * lead_ms - ghost.loss_ms, 0.0)
            self._behind_ms[e] = behind
            if behind > most:
                best, most = e, behind
        if best == self._lead or most <= self._margin * _LEAST_LOADS * self._mean_ms:
            return
        price_ms = self._change_ms(best)
        if most <= self._margin * price_ms:
            return
        self.changes += 1
        self.change_cost_ms += price_ms
        self._lead = best
        self._margin *= GROWTH
        self._behind_ms = [0.0] * len(self._ghosts)

    def _change_ms(self, e: int) -> float:
        """Load time of what expert `e` holds and we do not; at least a few mean loads."""
        missing = sum(
            self._load_ms.get(key, 0.0)
            for key in self._ghosts[e].resident
            if key not in self._resident
        )
        return max(missing, _LEAST_LOADS * self._mean_ms)

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        use = _sound(use)
        self._load_ms[use.key] = use.load_ms
        self._value.history.place(use)
        self._n_bytes += use.n_bytes - self._resident.get(use.key, 0)
        self._resident[use.key] = use.n_bytes
        if prefetched:
            self._fresh[use.key] = self._value.history.tick
        self._caution.admitted(use, prefetched=prefetched)
        if self._budget_bytes is not None:
            self._budget_bytes = max(self._budget_bytes, self._n_bytes)

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._n_bytes -= self._resident.pop(key, 0)
        self._fresh.pop(key, None)
        self._caution.evicted(key)

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self.evicted(key)
        self._load_ms.pop(key, None)
        for ghost in self._ghosts:
            ghost.forget(key)

    # --- deciding

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        if need_bytes <= 0:
            return []
        self._notice_budget(need_bytes, at_s)
        if self._lead == 0 and not self._fresh:
            return self._value.victims(need_bytes, evictable, at_s=at_s)
        order = self._value.victims(sum(evictable.values()), evictable, at_s=at_s)
        tick = self._value.history.tick
        held = self._ghosts[self._lead].resident if self._lead else {}

        def stays(key: str) -> bool:
            return key in held or tick - self._fresh.get(key, -_FRESH_TICKS) < _FRESH_TICKS

        going = [key for key in order if not stays(key)]
        staying = [key for key in order if stays(key)]
        return enough(going + staying, need_bytes, evictable)

    def _notice_budget(self, need_bytes: int, at_s: float) -> None:
        """The budget, seen from what has to go; ghosts begin to evict once it is known."""
        coming = self._asked.n_bytes if self._asked is not None else 0
        least = max(self._n_bytes + coming - need_bytes, self._n_bytes)
        if self._budget_bytes is None:
            self._budget_bytes = least
            for ghost in self._ghosts:
                ghost.fit(least, 0, at_s)
        self._budget_bytes = max(self._budget_bytes, least)

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        """By expected saving, with the chance of a use soon.

        That of adapters not in memory is divided by what prefetches taught (see `Caution`), so that
        a caller who compares chance * load time with that of the victims prefetches what pays.
        """
        doubt = self._caution.factor
        found = [
            (p if key in self._resident else p / doubt, key)
            for key, p in self._value.likely(at_s=at_s, limit=limit)
        ]
        found.sort(key=lambda row: -row[0] * self._load_ms.get(row[1], 1.0))
        return [(key, p) for p, key in found]

    # --- keeping

    def state(self) -> dict[str, object]:
        """What the learner knows and who is followed; ghosts start anew."""
        return {
            "policy": self.name, "version": VERSION, "following": self.following,
            "margin": self._margin, **self._value.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state.

        Raises:
            BadConfig: a state of another version or policy, or one that is not sound.
        """
        if state.get("policy") != self.name or state.get("version") != VERSION:
            raise BadConfig(
                f"the saved cache state is of policy {state.get('policy')!r}, version "
                f"{state.get('version')!r}; {self.name!r} reads version {VERSION}. Delete the "
                "state file to start anew"
            )
        try:
            names = [g.policy.name for g in self._ghosts]
            lead = names.index(state["following"])
            margin = float(state["margin"])
            if not MARGIN <= margin < 1e9:
                raise ValueError("margin")
            self._value.restore(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadConfig(
                f"the saved cache state is damaged ({type(error).__name__}: {error}). Delete the "
                "state file to start anew"
            ) from None
        self._lead, self._margin = lead, margin


def _sound(use: Use) -> Use:
    """With a load time that is a number: one infinite measurement must not spoil every mean."""
    return use if math.isfinite(use.load_ms) else replace(use, load_ms=0.0)
