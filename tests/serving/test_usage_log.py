"""The usage log: bounded, whole lines only, and never in the way of a request."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from floe.serving.usage_log import UsageLog, joined, older


def fill(path: Path, n: int, *, most_bytes: int, start: int = 0) -> None:
    log = UsageLog(path, most_bytes=most_bytes)
    for i in range(start, start + n):
        log.add(at_s=float(i), digest="d" * 64, n_bytes=5, load_ms=7.25, tenant="default")
    log.close()


def times(path: Path) -> list[float]:
    lines = path.read_text().splitlines()
    assert lines[0] == "time,key,size,load_ms,tenant"
    assert lines[1].split(",")[1:] == ["d" * 64, "5", "7.250", "default"]
    return [float(line.split(",")[0]) for line in lines[1:]]


def test_the_log_stays_within_its_bytes_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "usage.csv"
    fill(path, 200, most_bytes=4_000)
    assert path.stat().st_size + older(path).stat().st_size <= 4_000
    with joined(path) as whole:
        kept = times(whole)
    assert kept == sorted(kept)
    assert kept[-1] == 199.0
    assert len(kept) > 20
    assert kept == [float(i) for i in range(200 - len(kept), 200)]


def test_a_log_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "usage.csv"
    fill(path, 2, most_bytes=100_000)
    fill(path, 2, most_bytes=100_000, start=2)
    assert times(path) == [0.0, 1.0, 2.0, 3.0]
    with joined(path) as whole:
        assert whole == path


def test_a_disk_that_fails_is_said_once_and_stops_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR):
        fill(tmp_path / "file" / "usage.csv", 3, most_bytes=1000)
    said = [r.message for r in caplog.records if "no more uses are recorded" in r.message]
    assert len(said) == 1
