"""A given set stays; everything else takes turns in what is left."""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections.abc import Iterable, Mapping

from floe.adapters.policies.books import take
from floe.adapters.policies.lru import Lru


class Static(Lru):
    """Keys outside `keep` go first, longest unused first; then the set itself in the same way."""

    name = "static-best"

    def __init__(self, keep: Iterable[str] = ()) -> None:
        super().__init__()
        self._keep = frozenset(keep)

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        outside = [k for k in self._order if k not in self._keep]
        inside = [k for k in self._order if k in self._keep]
        return take(outside + inside, need_bytes, evictable, known=self._order)
