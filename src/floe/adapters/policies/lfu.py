"""LFU, LFU-DA and GDSF: frequency, with an ageing floor, with cost and size.

Young's rule: a new priority starts from the priority of the last victim, the floor, so that what
was hot once does not stay for ever.
"""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections.abc import Mapping

from floe.adapters.policies.books import Books, lowest
from floe.adapters.policy import Use


class Lfu(Books):
    """Least frequently used since the start, evicted or not; among equals the longest unused."""

    name = "lfu"

    def __init__(self) -> None:
        self._tick = 0
        self._rank: dict[str, tuple[float, int]] = {}  # uses, last use

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        self._tick += 1
        self._rank[use.key] = (self._rank.get(use.key, (0, 0))[0] + 1, self._tick)

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        return lowest(need_bytes, evictable, self._rank)

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._rank.pop(key, None)


class LfuDa(Books):
    """LFU with dynamic ageing: floor + uses while resident."""

    name = "lfu-da"

    def __init__(self) -> None:
        self._floor = 0.0
        self._tick = 0
        self._uses: dict[str, int] = {}
        self._priority: dict[str, tuple[float, int]] = {}

    def worth(self, use: Use) -> float:
        """What one use adds to the priority."""
        return 1.0

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        self._tick += 1
        if use.key in self._priority:
            self._raise(use, self._uses[use.key] + 1)

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        self._raise(use, self._uses.get(use.key, 1))

    def _raise(self, use: Use, uses: int) -> None:
        self._uses[use.key] = uses
        self._priority[use.key] = (self._floor + uses * self.worth(use), self._tick)

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        return lowest(need_bytes, evictable, self._priority)

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._uses.pop(key, None)
        self._floor = max(self._floor, self._priority.pop(key, (0.0, 0))[0])

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._uses.pop(key, None)
        self._priority.pop(key, None)


class Gdsf(LfuDa):
    """Greedy-dual size frequency: floor + uses * load time / bytes (Cherkasova, 1998)."""

    name = "gdsf"

    def worth(self, use: Use) -> float:
        """Load time for each MB."""
        return use.load_ms / max(use.n_bytes / 1e6, 1e-9)
