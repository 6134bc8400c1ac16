"""Written before sending, chained, and whole again after a kill."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import FloeError
from floe.privacy.ledger import EgressLedger
from floe.privacy.ledger_chain import GENESIS, inspect_ledger, older_files

SECRET = b"my sister was admitted"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "egress.jsonl"


def fill(path: Path, n: int) -> EgressLedger:
    ledger = EgressLedger(path=path)
    for i in range(n):
        ledger.record("https://cloud.example/v1", b"%d" % i, "allowed", f"req-{i}")
    return ledger


def test_a_record_says_what_left_but_not_the_text(path: Path) -> None:
    ledger = EgressLedger(path=path)
    entry = ledger.record("https://user:key@cloud.example/v1", SECRET, "nothing private", "req-1")
    assert ledger.read() == [entry]
    assert entry.destination == "https://cloud.example/v1"
    assert (entry.bytes, entry.sha256) == (len(SECRET), hashlib.sha256(SECRET).hexdigest())
    assert entry.time.endswith("+00:00")
    assert (entry.reason, entry.request_id, entry.prev) == ("nothing private", "req-1", GENESIS)
    assert SECRET not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_chain_goes_on_over_a_reopening(path: Path) -> None:
    fill(path, 3).close()
    again = fill(path, 2)
    report = again.verify()
    assert report.sound
    assert (report.entries, report.torn_lines) == (5, 0)
    entries = again.read()
    assert [e.prev for e in entries[1:]] == [e.hash for e in entries[:-1]]


def test_close_is_idempotent_and_a_later_record_opens_again(path: Path) -> None:
    ledger = fill(path, 1)
    ledger.close()
    ledger.close()
    ledger.record("d", b"x", "r", "q")
    assert ledger.verify().entries == 2


def test_a_readable_file_is_closed_to_others(path: Path) -> None:
    fill(path, 1).close()
    path.chmod(0o644)
    fill(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def edit(path: Path, number: int, change: dict[str, object]) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | change, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("field", ["time", "destination", "sha256", "reason", "request_id", "hash"])
def test_a_changed_line_is_found(path: Path, field: str) -> None:
    ledger = fill(path, 4)
    edit(path, 1, {field: "other"})
    report = ledger.verify()
    assert not report.sound
    assert (report.entries, report.broken_line) == (1, 2)
    assert report.problem == "the line was changed"


def test_a_removed_an_added_and_an_unreadable_line_are_found(path: Path) -> None:
    ledger = fill(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert ledger.verify().problem == "a line before it is missing or new"
    path.write_bytes(b"".join([*lines[:2], lines[1], *lines[2:]]))
    assert ledger.verify().broken_line == 3
    path.write_bytes(b"".join([lines[0], b"junk\n", *lines[1:]]))
    assert ledger.verify().problem == "the unreadable lines before it do not fit"
    path.write_bytes(b"".join([lines[0], b"junk\n", *lines[2:]]))
    assert not ledger.verify().sound


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(min_value=0, max_value=2000), twice=st.booleans())
def test_a_line_torn_anywhere_is_closed_on_reopening(
    tmp_path_factory: pytest.TempPathFactory, cut: int, twice: bool
) -> None:
    path = tmp_path_factory.mktemp("torn") / "egress.jsonl"
    fill(path, 3).close()
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept)
    if twice:  # the writer that wanted to close the line was killed as well
        with path.open("ab") as file:
            file.write(b'\n{"time":"20')
    ledger = fill(path, 2)
    report = ledger.verify()
    assert report.sound, report
    # The twin: lines of the rest that are whole JSON objects.
    survivors = sum(1 for line in kept.split(b"\n") if line.endswith(b'"}'))
    assert report.entries == survivors + 2
    assert len(ledger.read()) == survivors + 2


_WRITER = """
import sys
from pathlib import Path
from floe.privacy.ledger import EgressLedger
ledger = EgressLedger(path=Path(sys.argv[1]))
while True:
    ledger.record("https://cloud.example", b"x" * 100, "allowed", "req")
    print("wrote", flush=True)
"""


def test_a_killed_writer_leaves_a_sound_ledger(path: Path) -> None:
    root = Path(__file__).parents[2] / "src"
    env = os.environ | {"PYTHONPATH": str(root)}
    acknowledged = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, env=env
        )
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline() == b"wrote\n"
        writer.send_signal(signal.SIGKILL)
        acknowledged += 20 + len(writer.stdout.read().splitlines())
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        fill(path, 1).close()
        acknowledged += 1
    report = EgressLedger(path=path).verify()
    assert report.sound
    assert report.entries >= acknowledged


def _write_many(path: Path, n: int) -> None:
    fill(path, n)


def test_processes_and_threads_share_one_chain(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, 50)) for _ in range(2)]
    for process in processes:
        process.start()
    ledger = EgressLedger(path=path)
    threads = [
        threading.Thread(
            target=lambda: [ledger.record("d", b"x", "r", "q") for _ in range(50)],
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for worker in [*threads, *processes]:
        worker.join()
    assert [p.exitcode for p in processes] == [0, 0]
    report = ledger.verify()
    assert report.sound
    assert report.entries == 300


def test_a_forked_child_takes_its_own_lock(path: Path) -> None:
    ledger = fill(path, 1)
    inherited = ledger._fd
    ledger._pid = -1  # what a child sees: another process opened the file
    ledger.record("d", b"x", "r", "q")
    assert ledger._fd != inherited
    os.close(inherited)
    assert ledger.verify().entries == 2


def test_an_unwritable_ledger_raises_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FloeError, match=r"cannot write the egress ledger .*Nothing was sent"):
        EgressLedger(path=tmp_path / "file" / "egress.jsonl")
    with pytest.raises(FloeError, match="Is a directory"):
        EgressLedger(path=tmp_path)
    with pytest.raises(FloeError, match="it is not a regular file"):
        EgressLedger(path=Path("/dev/null"))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(FloeError, match="cannot write"):
        EgressLedger(path=tmp_path / "link")


def test_a_full_disk_raises_and_the_next_record_repairs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = fill(path, 2)
    real = os.write
    calls: list[int] = []

    def full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[:40])

    monkeypatch.setattr("floe.privacy.ledger.os.write", full)
    with pytest.raises(FloeError, match="No space left on device"):
        ledger.record("d", SECRET, "r", "q")
    monkeypatch.undo()
    entry = ledger.record("d", b"x", "r", "q")
    assert entry.torn_bytes == 40
    report = ledger.verify()
    assert (report.sound, report.entries, report.torn_lines) == (True, 3, 1)


def test_a_removed_file_is_noticed(path: Path) -> None:
    ledger = fill(path, 1)
    path.unlink()
    with pytest.raises(FloeError, match="the file was removed"):
        ledger.record("d", b"x", "r", "q")
    ledger.record("d", b"x", "r", "q")
    assert ledger.verify().entries == 1


def test_reading_what_is_not_there_says_so(path: Path) -> None:
    ledger = fill(path, 1)
    path.unlink()
    for read in (ledger.read, ledger.verify):
        with pytest.raises(FloeError, match=r"cannot read the egress ledger .*first leaves"):
            read()


def test_long_fields_are_cut(path: Path) -> None:
    entry = EgressLedger(path=path, fsync=True).record("d" * 9999, b"", "r" * 9999, "q" * 9999)
    assert {len(entry.destination), len(entry.reason), len(entry.request_id)} == {512}


def test_a_broken_chain_is_logged_once_on_opening_and_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(path, 3).close()
    assert caplog.records == []
    edit(path, 1, {"reason": "other"})
    ledger = fill(path, 1)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path} is broken at line 2: the line was changed" in record.getMessage()
    assert "floe privacy ledger" in record.getMessage()
    assert len(ledger.read()) == 4
    assert ledger.verify().broken_line == 2


def test_lines_cut_off_at_the_end_cannot_be_seen(path: Path) -> None:
    ledger = fill(path, 3)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert (ledger.verify().sound, ledger.verify().entries) == (True, 2)


# --- files put aside


def fill_small(path: Path, n: int) -> EgressLedger:
    ledger = EgressLedger(path=path, max_file_bytes=1500)
    for i in range(n):
        ledger.record("https://cloud.example/v1", b"%d" % i, "allowed", f"req-{i}")
    return ledger


def test_a_full_file_is_put_aside_and_the_chain_goes_on(path: Path) -> None:
    ledger = fill_small(path, 20)
    older = older_files(path)
    assert [f.name for f in older] == [f"egress.{n:04d}.jsonl" for n in range(1, len(older) + 1)]
    assert len(older) >= 3
    assert all(f.stat().st_size < 2200 for f in [*older, path])
    report, entries = inspect_ledger(path)
    assert (report.sound, report.entries, len(entries)) == (True, 20, 20)
    assert [e.request_id for e in entries] == [f"req-{i}" for i in range(20)]
    assert report.last_hash == entries[-1].hash
    assert ledger.verify() == report
    assert inspect_ledger(path, last=3)[1] == entries[-3:]
    assert inspect_ledger(path, last=0)[1] == []
    fill_small(path, 1).close()
    assert inspect_ledger(path)[0].entries == 21


def test_a_change_in_a_file_put_aside_or_its_loss_is_found(path: Path) -> None:
    fill_small(path, 12).close()
    first, *_ = older_files(path)
    whole = first.read_text()
    first.write_text(whole.replace("req-1", "req-9"))
    report = inspect_ledger(path)[0]
    assert (report.broken_file, report.broken_line) == ("egress.0001.jsonl", 2)
    assert report.problem == "the line was changed"
    first.unlink()
    report = inspect_ledger(path)[0]
    assert (report.broken_file, report.broken_line) == ("egress.0002.jsonl", 1)
    assert "a line before it is missing or new, or the files before this one" in report.problem


@pytest.mark.parametrize("torn", [b"", b'{"time":"20'])
def test_a_writer_killed_while_it_puts_a_file_aside_costs_nothing(path: Path, torn: bytes) -> None:
    fill_small(path, 3).close()
    path.rename(path.with_name("egress.0001.jsonl"))
    if torn:
        path.write_bytes(torn)
    fill_small(path, 2).close()
    report = inspect_ledger(path)[0]
    assert (report.sound, report.entries, report.torn_lines) == (True, 5, int(bool(torn)))


def _write_many_small(path: Path, n: int) -> None:
    fill_small(path, n)


def test_processes_and_threads_put_files_aside_together(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many_small, args=(path, 40)) for _ in range(2)]
    for process in processes:
        process.start()
    ledger = fill_small(path, 0)
    threads = [
        threading.Thread(target=lambda: [ledger.record("d", b"x", "r", "q") for _ in range(40)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for worker in [*threads, *processes]:
        worker.join()
    assert [p.exitcode for p in processes] == [0, 0]
    report = ledger.verify()
    assert (report.sound, report.entries) == (True, 200)
    assert len(older_files(path)) >= 20
