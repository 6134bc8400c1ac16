"""The replacement policy that cannot fail, and the guard that falls back to it.

A learned policy is code that sees live data. If it raises or names something it may not, requests
go on under "least recently used", and everybody who looks is told so (bug-log F07).
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from floe.adapters.policy import ReplacementPolicy, Use

T = TypeVar("T")

log = logging.getLogger("floe.adapters")


class Recency:
    """Least recently used goes first."""

    name = "lru"

    def __init__(self) -> None:
        self._order: OrderedDict[str, None] = OrderedDict()

    def used(self, use: Use, *, resident: bool) -> None:
        """A resident adapter moves to the young end."""
        if resident:
            self.admitted(use)

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """It enters at the young end."""
        del prefetched
        self._order[use.key] = None
        self._order.move_to_end(use.key)

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """The oldest; what was never admitted counts as oldest of all."""
        del at_s
        unknown = [key for key in evictable if key not in self._order]
        named, total = [], 0
        for key in (*unknown, *(k for k in self._order if k in evictable)):
            if total >= need_bytes:
                break
            named.append(key)
            total += evictable[key]
        return named

    def evicted(self, key: str) -> None:
        """It is no longer in the order."""
        self._order.pop(key, None)

    def forget(self, key: str) -> None:
        """As `evicted`."""
        self.evicted(key)

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        """No idea."""
        del at_s, limit
        return ()

    def state(self) -> dict[str, object]:
        """Nothing is learned."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Nothing to take up."""
        del state


class GuardedPolicy:
    """`policy` while it behaves, else least recently used for the rest of the process."""

    def __init__(self, policy: ReplacementPolicy | None = None) -> None:
        self._policy, self._recency = policy, Recency()
        self._name = policy.name if policy is not None else self._recency.name
        self.faults = 0
        self.note = ""

    @property
    def name(self) -> str:
        """The policy that decides now."""
        return self._name if self._policy is not None else self._recency.name

    def used(self, use: Use, *, resident: bool) -> None:
        """See ReplacementPolicy."""
        self._recency.used(use, resident=resident)
        self._ask(lambda p: p.used(use, resident=resident))

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See ReplacementPolicy."""
        self._recency.admitted(use, prefetched=prefetched)
        self._ask(lambda p: p.admitted(use, prefetched=prefetched))

    def evicted(self, key: str) -> None:
        """See ReplacementPolicy."""
        self._recency.evicted(key)
        self._ask(lambda p: p.evicted(key))

    def forget(self, key: str) -> None:
        """See ReplacementPolicy."""
        self._recency.forget(key)
        self._ask(lambda p: p.forget(key))

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """Distinct keys of `evictable`, no more than are needed; all if they do not suffice."""
        if need_bytes <= 0 or not evictable:
            return []
        asked = dict(evictable)  # what the policy does to it is its own affair
        named = self._ask(lambda p: p.victims(need_bytes, asked, at_s=at_s))
        if self._policy is not None and (fault := _fault(named, need_bytes, evictable)):
            self._fall_back(fault)
        if self._policy is None or named is None:
            named = self._recency.victims(need_bytes, evictable, at_s=at_s)
        return _needed(named, need_bytes, evictable)

    def likely(self, *, at_s: float, limit: int) -> list[tuple[str, float]]:
        """Keys with probabilities between 0 and 1, best first."""
        said = self._ask(lambda p: list(p.likely(at_s=at_s, limit=limit))) or []
        try:
            sound = all(isinstance(k, str) and math.isfinite(p) and 0 <= p <= 1 for k, p in said)
        except (TypeError, ValueError):
            sound = False
        if not sound:
            self._fall_back("it gave no probabilities")
            return []
        return [(key, float(p)) for key, p in said[:limit]]

    def _ask(self, question: Callable[[ReplacementPolicy], T]) -> T | None:
        if self._policy is None:
            return None
        try:
            return question(self._policy)
        except Exception as error:
            self._fall_back(f"it raised {type(error).__name__}")
            return None

    def _fall_back(self, why: str) -> None:
        self.faults += 1
        self._policy = None
        self.note = (
            f"replacement policy {self._name!r} was switched off: {why}. Least recently used "
            "adapters are evicted until the next start"
        )
        log.error("%s", self.note)


def _fault(named: object, need_bytes: int, evictable: Mapping[str, int]) -> str:
    """What is wrong with an answer of `victims`; "" if nothing is."""
    if not isinstance(named, list) or not all(isinstance(key, str) for key in named):
        return "its victims are not a list of keys"
    if len(set(named)) < len(named):
        return "it named a victim twice"
    if any(key not in evictable for key in named):
        return "it named a victim that may not be evicted"
    freed = sum(evictable[key] for key in named)
    if freed < need_bytes and len(named) < len(evictable):
        return "its victims do not free enough"
    return ""


def _needed(named: Sequence[str], need_bytes: int, evictable: Mapping[str, int]) -> list[str]:
    taken: list[str] = []
    freed = 0
    for key in named:
        if freed >= need_bytes:
            break
        taken.append(key)
        freed += evictable[key]
    return taken
