"""A call that hangs neither blocks nor piles up."""

from __future__ import annotations

import threading

import pytest

from floe.privacy.deadline import DeadlineRunner, TooLateError


def test_the_result_and_the_error_come_through() -> None:
    runner = DeadlineRunner()
    assert runner.run(lambda: 7, timeout_ms=5000) == 7
    with pytest.raises(KeyError, match="gone"):
        runner.run(lambda: {}["gone"], timeout_ms=5000)


def test_stuck_calls_take_no_more_than_their_places() -> None:
    runner = DeadlineRunner(max_threads=2)
    release = threading.Event()
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(TooLateError, match=r"not done in time|no place to run"):
            runner.run(release.wait, timeout_ms=5)
    with pytest.raises(TooLateError, match="no place to run"):
        runner.run(lambda: 1, timeout_ms=5)
    assert threading.active_count() - before == 2
    release.set()
    assert runner.run(lambda: 1, timeout_ms=5000) == 1
