"""How much a prefetch must promise, learned from what prefetches brought and cost.

The best of many uncertain guesses is mostly a guess too high, so without this a prefetch of what
looks likely replaces what is. A prefetched adapter that is used has saved its load; one that went
for it and is asked for again soon has cost its load.
"""

from __future__ import annotations

import math

from floe.adapters.policy import Use

_START, _LEAST, _MOST = 5.0, 1.5, 16.0
_STEP, _FORGET = 0.08, 0.001


class Caution:
    """`factor` >= 1 divides the chance of what is not in memory."""

    def __init__(self) -> None:
        self.factor = _START
        self._fresh: set[str] = set()
        self._gone: list[str] = []
        self._replaced: dict[str, int] = {}
        self._tick = 0
        self._mean_ms = 0.0

    def used(self, use: Use, *, resident: bool, within: float) -> None:
        """An adapter is asked for; what was replaced counts for `within` requests."""
        self._tick += 1
        self._gone.clear()
        self._mean_ms += (use.load_ms - self._mean_ms) / min(self._tick, 200)
        gain_ms = 0.0
        if use.key in self._fresh:
            self._fresh.discard(use.key)
            gain_ms = use.load_ms if resident else 0.0
        replaced = self._replaced.pop(use.key, None)
        if replaced is not None and not resident and self._tick - replaced <= within:
            gain_ms -= use.load_ms
        log = math.log(self.factor) - _STEP * gain_ms / max(self._mean_ms, 1e-9)
        log += _FORGET * (math.log(_START) - log)
        self.factor = min(max(math.exp(min(log, 5.0)), _LEAST), _MOST)

    def admitted(self, use: Use, *, prefetched: bool) -> None:
        """What went since the last request went for this adapter, if it is a prefetch."""
        self._replaced.pop(use.key, None)
        if prefetched and self._gone:  # into free room it cost nothing, so it teaches nothing
            self._fresh.add(use.key)
            self._replaced.update(dict.fromkeys(self._gone, self._tick))
        self._gone.clear()

    def evicted(self, key: str) -> None:
        """It went, for whom the next `admitted` tells."""
        self._fresh.discard(key)
        self._gone.append(key)
