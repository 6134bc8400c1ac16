"""What a cloud client has counted, as a frozen snapshot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from floe.cloud.breaker import State

_LAST = 256
_LAST_OUTCOMES = 64


@dataclass(frozen=True, kw_only=True)
class CloudCounters:
    """Totals since the client was made; `breaker` now; round trips and losses of late.

    asked = answered + failed + given up + still out. A question that the breaker turned away is
    `turned_away` and failed. A round trip is from sending to the first piece of the answer.
    """

    asked: int
    answered: int
    failed: int
    given_up: int
    retried: int
    turned_away: int
    restarted: int
    hedged: int
    skipped_events: int
    bytes_up: int
    bytes_down: int
    breaker: State
    round_trip_p50_ms: float
    round_trip_p95_ms: float
    loss_share: float

    def figures(self) -> dict[str, float]:
        """By name, for metrics: totals end in _total; the breaker is 0 closed ... 3 locked."""
        totals = (
            *("asked", "answered", "failed", "given_up", "retried", "turned_away"),
            *("restarted", "hedged", "skipped_events", "bytes_up", "bytes_down"),
        )
        states: tuple[State, ...] = ("closed", "probing", "open", "locked")
        return {
            **{f"cloud_{name}_total": float(getattr(self, name)) for name in totals},
            "cloud_breaker_state": float(states.index(self.breaker)),
            "cloud_round_trip_p50_ms": self.round_trip_p50_ms,
            "cloud_round_trip_p95_ms": self.round_trip_p95_ms,
            "cloud_loss_share": self.loss_share,
        }


class Tally:
    """The counts of one client, as they grow."""

    def __init__(self) -> None:
        self.asked = self.answered = self.failed = self.given_up = 0
        self.retried = self.turned_away = self.restarted = self.skipped_events = 0
        self.bytes_up = self.bytes_down = 0
        self._round_trips_ms: deque[float] = deque(maxlen=_LAST)
        self._lost: deque[bool] = deque(maxlen=_LAST_OUTCOMES)

    def round_trip(self, ms: float) -> None:
        """The first piece of an answer came after so long."""
        self._round_trips_ms.append(ms)

    def ended(self, *, ok: bool) -> None:
        """A question was answered, or failed."""
        self.answered += ok
        self.failed += not ok
        self._lost.append(not ok)

    def snapshot(self, *, breaker: State, hedged: int) -> CloudCounters:
        """The counts now."""
        return CloudCounters(
            asked=self.asked,
            answered=self.answered,
            failed=self.failed,
            given_up=self.given_up,
            retried=self.retried,
            turned_away=self.turned_away,
            restarted=self.restarted,
            hedged=hedged,
            skipped_events=self.skipped_events,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            breaker=breaker,
            round_trip_p50_ms=self._quantile(0.5),
            round_trip_p95_ms=self._quantile(0.95),
            loss_share=sum(self._lost) / len(self._lost) if self._lost else 0.0,
        )

    def _quantile(self, share: float) -> float:
        """Of the last round trips; 0 before the first."""
        known = sorted(self._round_trips_ms)
        return known[min(len(known) - 1, int(share * len(known)))] if known else 0.0
