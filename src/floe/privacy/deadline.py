"""Run a call that may hang, and stop waiting for it in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLateError(Exception):
    """The call was given up; it is no TimeoutError, which the call itself may raise."""


class DeadlineRunner:
    """Calls in daemon threads, at most `max_threads` at once, the stuck ones counted.

    A call that never returns keeps its place, so stuck calls cannot pile up; when every place is
    taken, `run` waits for one and then gives up like any other late call.
    """

    def __init__(self, *, max_threads: int = 4) -> None:
        self._places = threading.BoundedSemaphore(max_threads)

    def run(self, call: Callable[[], T], *, timeout_ms: float) -> T:
        """What `call` returns or raises.

        Raises:
            TooLateError: not done, or not even begun, after `timeout_ms`.
        """
        until = time.monotonic() + timeout_ms / 1000
        if not self._places.acquire(timeout=timeout_ms / 1000):
            raise TooLateError("no place to run")
        done = threading.Event()
        outcome: list[tuple[T | None, BaseException | None]] = []

        def work() -> None:
            try:
                outcome.append((call(), None))
            except BaseException as error:  # handed to the caller below
                outcome.append((None, error))
            finally:
                self._places.release()
                done.set()

        try:
            threading.Thread(target=work, name="floe-privacy", daemon=True).start()
        except BaseException:
            self._places.release()
            raise
        if not done.wait(max(0.0, until - time.monotonic())):
            raise TooLateError("not done in time")
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value] # set whenever error is None
