"""The price of time as a Lagrange multiplier: misses raise it, requests in time lower it.

A request that was slowed for the sake of energy makes those behind it wait, and leaves no slack
for another program that starts later. Neither shows in the request's own goals, so the price of
time follows what came of it: dual ascent on the share of missed goals.
"""

from __future__ import annotations

from floe.power.base import Goals

_TARGET = 0.01
"""The share of requests that may miss a goal which full speed would have met."""
_RATE = 0.5
_MOST = 4.0


class Pressure:
    """Counts misses that full speed would not have had. `price` is in watts of full speed."""

    def __init__(self) -> None:
        self.price = 0.0
        self._goals: Goals | None = None
        self._clear()

    def begin(self, goals: Goals) -> None:
        """A request starts: what the one before came to moves the price."""
        if self._goals is not None:
            moved = self.price + _RATE * (self._missed() - _TARGET)
            self.price = min(max(moved, 0.0), _MOST)
        self._goals = goals
        self._clear()

    def prefill(self, left_ms: float, fast_ms: float) -> None:
        """A prefill is about to start that takes `fast_ms` at full speed."""
        waited = self._goals is not None and fast_ms <= self._goals.ttft_ms
        self._waited_long = waited and fast_ms > left_ms

    def decoded(self, tokens: int, took_ms: float, fast_ms: float) -> None:
        """Tokens that took `took_ms` together, and would have at full speed `fast_ms`."""
        self._tokens += tokens
        self._took_ms += took_ms
        self._fast_ms += fast_ms

    def _missed(self) -> bool:
        assert self._goals is not None
        most_ms = self._goals.tpot_ms * self._tokens
        return self._waited_long or self._fast_ms <= most_ms < self._took_ms

    def _clear(self) -> None:
        self._waited_long = False
        self._tokens, self._took_ms, self._fast_ms = 0, 0.0, 0.0
