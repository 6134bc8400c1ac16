"""S3-FIFO: a small queue filters what is asked for once (Yang et al., SOSP 2023).

New keys enter the small queue, a tenth of the bytes; used again they move to the main queue, else
they leave and are remembered as ghosts, which enter main at once. Main gives second chances.
"""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from floe.adapters.policies.books import Books, strangers_in, take
from floe.adapters.policy import Use

_SMALL_SHARE = 0.1
_MOST_USES = 3

Queue = OrderedDict[str, int]


@dataclass(kw_only=True)
class _Plan:
    """The queues as they will be once the victims are gone."""

    small: Queue
    main: Queue
    uses: dict[str, int]
    victims: frozenset[str] = frozenset()
    ghosts: dict[str, int] = field(default_factory=dict)


class S3Fifo(Books):
    """Three queues; bytes stand for counts."""

    name = "s3-fifo"

    def __init__(self) -> None:
        self._small: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._ghost: Queue = OrderedDict()
        self._uses: dict[str, int] = {}
        self._plan: _Plan | None = None

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""
        self._plan = None
        if use.key in self._uses:
            self._uses[use.key] = min(self._uses[use.key] + 1, _MOST_USES)

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""
        self._plan = None
        if use.key in self._uses:
            return
        self._uses[use.key] = 0
        was_ghost = self._ghost.pop(use.key, None) is not None
        (self._main if was_ghost else self._small)[use.key] = use.n_bytes

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        strangers = strangers_in(evictable, self._uses)
        found = take(strangers, need_bytes, evictable, known=evictable)
        missing = need_bytes - sum(evictable[k] for k in found)
        plan = _Plan(small=self._small.copy(), main=self._main.copy(), uses=dict(self._uses))
        held = sum(plan.small.values()) + sum(plan.main.values())
        # Each turn a key leaves, moves to main or loses a use, so this ends.
        turns = (_MOST_USES + 2) * (len(plan.uses) + 1)
        while missing > 0 and turns > 0:
            turns -= 1
            key = _turn(plan, _SMALL_SHARE * held, evictable)
            if key is not None:
                found.append(key)
                missing -= evictable[key]
        if missing > 0:
            gone = set(found)
            found += [k for k in evictable if k not in gone]
        plan.victims = frozenset(found)
        self._plan = plan
        return found

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        plan, n_bytes = self._plan, self._small.get(key)
        if plan is not None and key in plan.victims:
            n_bytes = plan.ghosts.get(key)
            self._small, self._main, self._uses = plan.small, plan.main, plan.uses
        if n_bytes is not None:
            self._ghost[key] = n_bytes
        self._drop(key)
        while len(self._ghost) > max(len(self._main), 1):
            self._ghost.popitem(last=False)

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self._plan = None
        self._ghost.pop(key, None)
        self._drop(key)

    def _drop(self, key: str) -> None:
        self._small.pop(key, None)
        self._main.pop(key, None)
        self._uses.pop(key, None)


def _turn(plan: _Plan, small_bytes: float, evictable: Mapping[str, int]) -> str | None:
    """Look at the oldest of one queue; its key if it leaves."""
    from_small = bool(plan.small) and (sum(plan.small.values()) > small_bytes or not plan.main)
    queue = plan.small if from_small else plan.main
    if not queue:
        return None
    key, n_bytes = queue.popitem(last=False)
    if key not in evictable:  # pinned: waits at the far end
        queue[key] = n_bytes
        return None
    if from_small and plan.uses[key] > 0:
        plan.uses[key] = 0
        plan.main[key] = n_bytes
        return None
    if not from_small and plan.uses[key] > 0:
        plan.uses[key] -= 1
        plan.main[key] = n_bytes
        return None
    del plan.uses[key]
    if from_small:
        plan.ghosts[key] = n_bytes
    return key
