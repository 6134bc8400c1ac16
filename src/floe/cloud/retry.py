"""When to ask again: full jitter, Retry-After, and never past the caller's budget."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from floe.core.errors import CloudFailed

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_HOLD_S = 300.0


class Trouble(CloudFailed):
    """A failure of the network or the service; `is_passing` if asking again may help.

    `hold_s` is how long the service asked to be left alone, 0 if it did not.
    """

    def __init__(self, message: str, *, is_passing: bool, hold_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_passing, self.hold_s = is_passing, hold_s


@dataclass(frozen=True, kw_only=True)
class Retry:
    """At most `most` more tries; the nth waits a random time up to base * 2^n, at most `cap_ms`."""

    most: int = 2
    base_ms: float = 25.0
    cap_ms: float = 400.0

    def delay_ms(self, n: int, trouble: Trouble, rng: random.Random) -> float:
        """Before try number n (from 0); after the time the service asked for, if it did."""
        jitter_ms = rng.random() * min(self.cap_ms, self.base_ms * 2.0**n)
        return trouble.hold_s * 1000 + jitter_ms


def is_passing(status: int) -> bool:
    """Whether the same question may be answered a moment later."""
    return status in _PASSING


def hold_s_of(value: str | None, now: datetime) -> float:
    """Seconds of a Retry-After header (a number or a date), at most 5 minutes; 0 without one."""
    if value is None:
        return 0.0
    try:
        hold_s = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        hold_s = (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds()
    return min(max(hold_s, 0.0), _MOST_HOLD_S) if math.isfinite(hold_s) else 0.0
