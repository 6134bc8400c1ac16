"""LRU: the longest unused goes first."""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from floe.adapters.policies.books import Books, take
from floe.adapters.policy import Use


class Lru(Books):
    """Least recently used."""

    name = "lru"

    def __init__(self) -> None:
        self._order: OrderedDict[str, None] = OrderedDict()

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        if use.key in self._order:
            self._order.move_to_end(use.key)

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        self._order[use.key] = None
        self._order.move_to_end(use.key)

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        return take(self._order, need_bytes, evictable, known=self._order)

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._order.pop(key, None)
