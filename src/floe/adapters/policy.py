"""Who goes when an adapter needs room: the protocol of replacement policies.

The live cache and the simulator speak it alike. A policy never frees anything: it keeps its books
and names victims. It is called on one thread, never blocks and draws no random numbers of its own
(a seed is given at construction). Whatever is not in `evictable` is pinned or on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Use:
    """One request for an adapter. `load_ms` is what a load of it costs, measured or estimated.

    `context_D` is the prompt's embedding reduced to D numbers, None where there is none.
    """

    key: str
    n_bytes: int
    load_ms: float
    at_s: float
    tenant: str = "default"
    context_D: NDArray[np.float32] | None = None


class ReplacementPolicy(Protocol):
    """Keeps the books of one cache of bytes."""

    @property
    def name(self) -> str:
        """Its name in configuration, reports and on the command line."""
        ...

    def used(self, use: Use, *, resident: bool) -> None:
        """An adapter is asked for; comes before `victims` and `admitted` of the same request."""
        ...

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """The adapter is in memory now (or its load has begun, and its bytes are taken)."""
        ...

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """Keys of `evictable` (key -> bytes) to free, first one first, at least `need_bytes`.

        All of them when they do not suffice. Pure: nothing is freed until `evicted` says so.
        """
        ...

    def evicted(self, key: str) -> None:
        """The adapter is no longer in memory."""
        ...

    def forget(self, key: str) -> None:
        """The adapter is gone for good: everything known of it is dropped."""
        ...

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        """Adapters worth having, best first, with the probability of a use soon; () = no idea.

        The chances compare with each other: loading one ahead pays if its chance * load time is
        above that of what goes for it. So ask for those of the victims too (a high `limit`).
        """
        ...

    def state(self) -> dict[str, object]:
        """What was learned, as plain JSON values with a version; {} for one that learns nothing."""
        ...

    def restore(self, state: Mapping[str, object]) -> None:
        """Take up a saved state.

        Raises:
            BadConfig: a state of another version or policy, or one that is not sound.
        """
        ...
