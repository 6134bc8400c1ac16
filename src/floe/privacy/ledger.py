"""What left the device: an append-only file of JSON lines, each chained to the one before.

Written before the bytes are sent. It holds their digest, never the bytes. The chain shows a line
changed, removed or put in between; it cannot show that the newest lines were cut off: what is
left then fits. Only a copy of the newest hash, kept elsewhere, could show that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from floe.core.errors import FloeError

GENESIS = "0" * 64
_log = logging.getLogger(__name__)
_TAIL_BYTES = 65_536
_MAX_FIELD_CHARS = 512
_USERINFO = re.compile(r"(?<=//)[^/@\s]*@")


@dataclass(frozen=True, kw_only=True)
class Egress:
    """One sending. `sha256` is the payload's, `prev` and `hash` chain the lines.

    `torn_bytes` counts the bytes of a half written line that this entry closed.
    """

    time: str
    destination: str
    bytes: int
    sha256: str
    reason: str
    request_id: str
    prev: str
    torn_bytes: int = 0
    hash: str = ""


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """What `verify` found: `broken_line` is the first line that does not fit, from 1.

    `torn_end_bytes` counts what stands behind the last whole entry: a line cut short while it
    was written. The next entry closes it.
    """

    entries: int
    torn_lines: int
    broken_line: int | None = None
    problem: str = ""
    torn_end_bytes: int = 0

    @property
    def sound(self) -> bool:
        """Whether every line fits."""
        return self.broken_line is None


class EgressLedger:
    """Safe for threads, processes (flock) and forks; a killed writer costs at most its own line."""

    def __init__(self, *, path: Path, fsync: bool = False) -> None:
        """Open or create `path`, readable by its owner only.

        `fsync` also makes every line survive a power cut, for some milliseconds each. A file
        whose chain is broken is logged as a warning and goes on: the break stays visible.

        Raises:
            FloeError: the file cannot be opened for writing.
        """
        self._path = path
        self._fsync = fsync
        self._lock = threading.Lock()
        self._fd = -1
        self._pid = 0
        self._known: tuple[int, str] = (-1, GENESIS)  # (file size, hash of its last line)
        with self._locked() as size:
            pass
        if size:
            self._warn_if_broken()

    def record(self, destination: str, payload: bytes, reason: str, request_id: str) -> Egress:
        """Write one line; call it before sending `payload`, and send only when it returns.

        `destination` loses a user name and password of its URL; no argument may hold the
        user's text.

        Raises:
            FloeError: the line could not be written, so nothing may be sent.
        """
        digest = hashlib.sha256(payload).hexdigest()
        with self._locked() as size:
            prev, torn, closing = self._tail(size)
            entry = _sealed(
                Egress(
                    time=datetime.now(UTC).isoformat(timespec="microseconds"),
                    destination=_USERINFO.sub("", destination)[:_MAX_FIELD_CHARS],
                    bytes=len(payload),
                    sha256=digest,
                    reason=reason[:_MAX_FIELD_CHARS],
                    request_id=request_id[:_MAX_FIELD_CHARS],
                    prev=prev,
                    torn_bytes=torn,
                )
            )
            line = closing + _line(entry)
            self._append(line)
            self._known = (size + len(line), entry.hash)
        return entry

    def read(self) -> list[Egress]:
        """Every whole entry, oldest first.

        Raises:
            FloeError: the file cannot be read.
        """
        return inspect_ledger(self._path)[1]

    def verify(self) -> LedgerReport:
        """Walk the chain from the first line.

        Raises:
            FloeError: the file cannot be read.
        """
        return inspect_ledger(self._path)[0]

    def close(self) -> None:
        """Give the file back; idempotent. A later `record` opens it again."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the file against threads and processes; yields its size in bytes."""
        with self._lock:
            try:
                if self._fd < 0 or self._pid != os.getpid():
                    self._open()
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    if os.fstat(self._fd).st_nlink == 0:
                        raise FileNotFoundError(2, "the file was removed")
                    yield os.fstat(self._fd).st_size
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            except OSError as error:
                self._known = (-1, GENESIS)
                if self._fd >= 0:
                    os.close(self._fd)
                    self._fd = -1
                raise FloeError(
                    f"cannot write the egress ledger {self._path}: {error.strerror}. Nothing was "
                    "sent. Make it writable, or set privacy.ledger = false"
                ) from error

    def _open(self) -> None:
        # A descriptor inherited by fork would share its lock with the parent.
        self._fd = -1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(22, "it is not a regular file")
            if stat.S_IMODE(status.st_mode) != 0o600:
                os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._pid, self._known = fd, os.getpid(), (-1, GENESIS)

    def _tail(self, size: int) -> tuple[str, int, bytes]:
        """Hash of the last whole entry, the torn bytes behind it, and what closes their line."""
        if size == self._known[0]:
            return self._known[1], 0, b""
        want = _TAIL_BYTES
        while True:
            start = max(0, size - want)
            data = os.pread(self._fd, size - start, start)
            lines = data.split(b"\n")
            closing = b"\n" if lines[-1] else b""
            torn = 0
            for line in reversed(lines if start == 0 else lines[1:]):
                entry = _parsed(line)
                if entry is not None:
                    return entry.hash, torn, closing
                torn += len(line)
            if start == 0:
                return GENESIS, torn, closing
            want *= 16

    def _append(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if self._fsync:
            os.fsync(self._fd)

    def _warn_if_broken(self) -> None:
        report = self.verify()
        if not report.sound:
            _log.warning(
                "the egress ledger %s is broken at line %d: %s. New lines are written behind it; "
                "look at it with: floe privacy ledger",
                self._path,
                report.broken_line,
                report.problem,
            )


def inspect_ledger(path: Path) -> tuple[LedgerReport, list[Egress]]:
    """The state of the chain and every whole entry, oldest first; opens `path` for reading only.

    Raises:
        FloeError: the file cannot be read.
    """
    parsed = [(_parsed(line), len(line)) for line in _lines(path)]
    return _report(parsed), [entry for entry, _ in parsed if entry is not None]


def _report(lines: list[tuple[Egress | None, int]]) -> LedgerReport:
    """Walk the chain from the first of (entry, bytes of its line)."""
    prev, torn, entries, torn_lines = GENESIS, 0, 0, 0
    for number, (entry, n_bytes) in enumerate(lines, start=1):
        if entry is None:
            torn, torn_lines = torn + n_bytes, torn_lines + 1
            continue
        if entry.torn_bytes != torn:
            return _broken(entries, torn_lines, number, "the unreadable lines before it do not fit")
        if entry.prev != prev:
            return _broken(entries, torn_lines, number, "a line before it is missing or new")
        if _sealed(entry).hash != entry.hash:
            return _broken(entries, torn_lines, number, "the line was changed")
        prev, torn, entries = entry.hash, 0, entries + 1
    return LedgerReport(entries=entries, torn_lines=torn_lines, torn_end_bytes=torn)


def _lines(path: Path) -> list[bytes]:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(22, "it is not a regular file")
        data = path.read_bytes()
    except OSError as error:
        raise FloeError(
            f"cannot read the egress ledger {path}: {error.strerror}. Run this as the user who "
            "runs floe; if it is no file, move it away (it is written when something first leaves)"
        ) from error
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _line(entry: Egress) -> bytes:
    return json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"


def _sealed(entry: Egress) -> Egress:
    values = asdict(entry) | {"hash": ""}
    data = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
    return Egress(**(values | {"hash": hashlib.sha256(data).hexdigest()}))


def _parsed(line: bytes) -> Egress | None:
    """The entry of a line; None when it is no entry."""
    try:
        values = json.loads(line)
        entry = Egress(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    return entry if _typed(entry) else None


def _typed(entry: Egress) -> bool:
    numbers = (entry.bytes, entry.torn_bytes)
    texts = (entry.time, entry.destination, entry.sha256, entry.reason, entry.request_id)
    chained = (entry.prev, entry.hash)
    return all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts + chained)


def _broken(entries: int, torn_lines: int, line: int, problem: str) -> LedgerReport:
    return LedgerReport(entries=entries, torn_lines=torn_lines, broken_line=line, problem=problem)
