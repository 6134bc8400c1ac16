"""SIEVE: one queue, one mark for each key, a hand that spares the marked (Zhang, NSDI 2024)."""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections.abc import Mapping

from floe.adapters.policies.books import Books
from floe.adapters.policy import Use


class Sieve(Books):
    """A hand goes from the oldest to the newest; it clears marks and takes the first without."""

    name = "sieve"

    def __init__(self) -> None:
        self._queue: list[str] = []  # oldest first
        self._marked: dict[str, bool] = {}
        self._hand = 0
        self._plan: tuple[frozenset[str], list[str], str | None] = (frozenset(), [], None)

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        if use.key in self._marked:
            self._marked[use.key] = True

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        if use.key not in self._marked:
            self._queue.append(use.key)
            self._marked[use.key] = False

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        found = []
        for key in evictable:
            if need_bytes > 0 and key not in self._marked:
                found.append(key)
                need_bytes -= evictable[key]
        cleared: list[str] = []
        seen: set[str] = set()
        taken: set[str] = set()
        at, n = self._hand, len(self._queue)
        for _ in range(2 * n):  # the second round finds every mark cleared
            if need_bytes <= 0:
                break
            key = self._queue[at % n]
            at += 1
            if key in taken or key not in evictable:
                continue
            if self._marked[key] and key not in seen:
                seen.add(key)
                cleared.append(key)
                continue
            found.append(key)
            taken.add(key)
            need_bytes -= evictable[key]
        after = self._queue[at % n] if n else None
        self._plan = (frozenset(found), cleared, after)
        return found

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        victims, cleared, after = self._plan
        if key in victims:
            for spared in cleared:
                if spared in self._marked:
                    self._marked[spared] = False
            self._plan = (victims, [], after)
        self._remove(key)
        if key in victims and after in self._marked:
            self._hand = self._queue.index(after)

    def _remove(self, key: str) -> None:
        if self._marked.pop(key, None) is None:
            return
        index = self._queue.index(key)
        del self._queue[index]
        if index < self._hand:
            self._hand -= 1
        if self._hand >= len(self._queue):
            self._hand = 0

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._plan = (frozenset(), [], None)
        self._remove(key)
