"""A circuit breaker: a cloud that keeps failing is left alone, then tried with one probe."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from floe.core.errors import CloudFailed

State = Literal["closed", "open", "probing", "locked"]


@dataclass(frozen=True, kw_only=True)
class BreakerRules:
    """When to open: so many failures in a row, or this share of the last `window` outcomes.

    The cool-down doubles with each failed probe up to `most_cool_down_s`; it is drawn from the
    upper half of that time, so that many devices do not probe at one moment.
    """

    failures_in_a_row: int = 5
    window: int = 20
    failed_share: float = 0.5
    cool_down_s: float = 1.0
    most_cool_down_s: float = 30.0


class Breaker:
    """Shared by all requests of one client.

    closed: all may ask. open: nobody, until the cool-down is over. probing: one question is out
    and decides. locked: nobody, until restart. `clock` gives seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        rules: BreakerRules | None = None,
    ) -> None:
        self._clock, self._rng, self._rules = clock, rng, rules or BreakerRules()
        self._outcomes: deque[bool] = deque(maxlen=self._rules.window)
        self._failures_in_a_row, self._failed_probes = 0, 0
        self._open_until_s = 0.0
        self.state: State = "closed"

    def enter(self) -> Pass:
        """Leave to ask once; its outcome must be told.

        Raises:
            CloudFailed: not now; nothing was sent.
        """
        if self.state == "locked":
            raise CloudFailed("the cloud refuses the key: set FLOE_CLOUD_KEY and restart")
        if self.state == "closed":
            return Pass(self, is_probe=False)
        wait_s = self._open_until_s - self._clock()
        if self.state == "probing" or wait_s > 0:
            raise CloudFailed("it failed too often and is left alone for a while")
        self.state = "probing"
        return Pass(self, is_probe=True)

    def told(self, *, ok: bool, is_probe: bool, hold_s: float = 0.0) -> None:
        """Count an outcome; `hold_s` is how long the cloud asked to be left alone."""
        if self.state == "locked":
            return
        if ok:
            self._succeeded(is_probe=is_probe)
        elif is_probe and self.state == "probing":
            self._failed_probes += 1
            self._open(hold_s)
        elif self.state == "closed":
            self._failures_in_a_row += 1
            self._outcomes.append(False)
            if hold_s > 0 or self._is_too_much():
                self._open(hold_s)

    def lock(self) -> bool:
        """Ask nothing more until restart; False where that was so already."""
        was, self.state = self.state, "locked"
        return was != "locked"

    def unused(self) -> None:
        """A probe ended without an outcome: the next question probes."""
        if self.state == "probing":
            self.state = "open"

    def _succeeded(self, *, is_probe: bool) -> None:
        if is_probe and self.state == "probing":
            self.state = "closed"
            self._outcomes.clear()
            self._failed_probes = 0
        if self.state == "closed":
            self._failures_in_a_row = 0
            self._outcomes.append(True)

    def _is_too_much(self) -> bool:
        if self._failures_in_a_row >= self._rules.failures_in_a_row:
            return True
        failed = self._outcomes.count(False)
        return (
            len(self._outcomes) == self._rules.window
            and failed >= self._rules.failed_share * self._rules.window
        )

    def _open(self, hold_s: float) -> None:
        longest_s = min(
            self._rules.most_cool_down_s, self._rules.cool_down_s * 2.0**self._failed_probes
        )
        cool_s = longest_s * (0.5 + 0.5 * self._rng.random())
        self._open_until_s = self._clock() + (hold_s or cool_s)
        self.state = "open"
        self._failures_in_a_row = 0
        self._outcomes.clear()


class Pass:
    """Leave for one question. Told once; a good beginning of a long answer ends a probe."""

    def __init__(self, breaker: Breaker, *, is_probe: bool) -> None:
        self._breaker, self._is_probe = breaker, is_probe
        self._is_told = self._began = False

    def began(self) -> None:
        """The answer comes in: others may ask while it does."""
        if not self._began and self._is_probe:
            self._breaker.told(ok=True, is_probe=True)
        self._began = True

    def succeeded(self) -> None:
        """The answer was whole and good."""
        self._tell(ok=True)

    def failed(self, hold_s: float = 0.0) -> None:
        """No answer, a broken one, or one given up after its time."""
        self._tell(ok=False, hold_s=hold_s)

    def released(self) -> None:
        """Nobody wanted the rest: a good outcome if the answer had begun, else none."""
        if self._began:
            self._tell(ok=True)
        elif not self._is_told and self._is_probe:
            self._breaker.unused()
        self._is_told = True

    def _tell(self, *, ok: bool, hold_s: float = 0.0) -> None:
        if not self._is_told:
            self._is_told = True
            is_probe = self._is_probe and not self._began
            self._breaker.told(ok=ok, is_probe=is_probe, hold_s=hold_s)
