"""What left the device: an append-only file of JSON lines, each chained to the one before.

Written before the bytes are sent. It holds their digest, never the bytes. A file that has grown
large is put aside as egress.0001.jsonl and so on, and the chain goes on in a new one; none is ever
deleted. The chain shows a line changed, removed or put in between; it cannot show that the newest
lines were cut off: what is left then fits. Only a copy of the newest hash, kept elsewhere, could
show that.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from floe.core.errors import FloeError
from floe.privacy.ledger_chain import (
    GENESIS,
    Egress,
    LedgerReport,
    Walk,
    aside_name,
    inspect_ledger,
    last_entry,
    line_of,
    number_of,
    older_files,
    sealed,
)

MAX_FILE_BYTES = 16_000_000
"""About 40,000 entries, which are checked in a second."""
_log = logging.getLogger(__name__)
_MAX_FIELD_CHARS = 512
_USERINFO = re.compile(r"(?<=//)[^/@\s]*@")


class EgressLedger:
    """Safe for threads, processes (flock) and forks; a killed writer costs at most its own line."""

    def __init__(
        self, *, path: Path, fsync: bool = False, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Open or create `path`, readable by its owner only; above `max_file_bytes` a new one.

        `fsync` also makes every line survive a power cut, for some milliseconds each. A file
        whose chain is broken is logged as a warning and goes on: the break stays visible.

        Raises:
            FloeError: the file cannot be opened for writing.
        """
        self._path = path
        self._fsync = fsync
        self._max_file_bytes = max_file_bytes
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
        self._make_room()
        with self._locked() as size:
            prev, torn, closing = self._tail(size)
            entry = sealed(
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
            line = closing + line_of(entry)
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
        """Walk the chain from the first line of the oldest file.

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
                self._lock_file()
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

    def _lock_file(self) -> None:
        """Lock the file that is at the path now: another writer may have put ours aside."""
        while True:
            if self._fd < 0 or self._pid != os.getpid():
                self._open()
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink == 0 or self._is_current():
                return
            os.close(self._fd)  # gives the lock back
            self._fd = -1

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except FileNotFoundError:
            return False

    def _make_room(self) -> None:
        """Rename a full file; whoever gets the lock next finds out and opens the new one."""
        if 0 <= self._known[0] < self._max_file_bytes:
            return
        with self._locked() as size:
            if size < self._max_file_bytes or self._tail(size)[1]:
                return
            older = older_files(self._path)
            number = 1 + (number_of(older[-1]) if older else 0)
            self._path.rename(self._path.with_name(aside_name(self._path, number)))

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
        if size == 0:
            return self._older_hash(), 0, b""
        entry, torn, closing = last_entry(self._fd, size)
        return (entry.hash if entry is not None else self._older_hash()), torn, closing

    def _older_hash(self) -> str:
        """Hash of the last entry of the newest file put aside."""
        older = older_files(self._path)
        if not older:
            return GENESIS
        fd = os.open(older[-1], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            entry, _, _ = last_entry(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        return entry.hash if entry is not None else GENESIS

    def _append(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if self._fsync:
            os.fsync(self._fd)

    def _warn_if_broken(self) -> None:
        start = self._older_hash()
        try:
            report = Walk(start=start).over(self._path)
        except FloeError:
            if self._older_hash() == start:
                raise
            return  # another process has just put the full file aside
        if not report.sound and self._older_hash() == start:
            _log.warning(
                "the egress ledger %s is broken at line %d: %s. New lines are written behind it; "
                "look at it with: floe privacy ledger",
                self._path,
                report.broken_line,
                report.problem,
            )
