"""The chain of a ledger's lines: how a line is made, read and checked; opens files to read only."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from floe.core.errors import FloeError

GENESIS = "0" * 64
_TAIL_BYTES = 65_536


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
    was written. The next entry closes it. `last_hash` is what a copy kept elsewhere should hold.
    """

    entries: int
    torn_lines: int
    broken_line: int | None = None
    problem: str = ""
    torn_end_bytes: int = 0
    broken_file: str = ""
    last_hash: str = GENESIS

    @property
    def sound(self) -> bool:
        """Whether every line fits."""
        return self.broken_line is None


def inspect_ledger(path: Path, *, last: int | None = None) -> tuple[LedgerReport, list[Egress]]:
    """The state of the chain and the whole entries, oldest first; opens files for reading only.

    With `last` only the newest so many entries are kept, so that any ledger fits in memory.

    Raises:
        FloeError: a file cannot be read.
    """
    walk, report = Walk(kept=deque(maxlen=last)), LedgerReport(entries=0, torn_lines=0)
    for file in [*older_files(path), path]:
        report = walk.over(file)
    return report, list(walk.kept)


def older_files(path: Path) -> list[Path]:
    """The files that were put aside, oldest first."""
    found = path.parent.glob(f"{path.stem}.[0-9][0-9][0-9][0-9]*{path.suffix}")
    return sorted((f for f in found if number_of(f)), key=number_of)


def aside_name(path: Path, number: int) -> str:
    """The name under which the nth full file is put aside."""
    return f"{path.stem}.{number:04d}{path.suffix}"


def number_of(file: Path) -> int:
    """The n of such a name; 0 for another."""
    digits = file.stem.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


@dataclass(kw_only=True)
class Walk:
    """Checks lines in order, over one file or several; `kept` are the newest whole entries."""

    start: str = GENESIS
    kept: deque[Egress] = field(default_factory=deque)
    _entries: int = 0
    _torn_lines: int = 0
    _torn: int = 0
    _broken: tuple[int, str, str] | None = None

    def over(self, file: Path) -> LedgerReport:
        """Go on through this file; the report is about all so far."""
        for number, line in enumerate(lines_of(file), start=1):
            entry = parsed(line)
            if entry is None:
                self._torn, self._torn_lines = self._torn + len(line), self._torn_lines + 1
                continue
            self.kept.append(entry)
            problem = self._problem(entry, is_first=number == 1)
            if problem and self._broken is None:
                self._broken = (number, problem, file.name)
            if self._broken is None:
                self._entries += 1
            self.start, self._torn = entry.hash, 0
        return self._report()

    def _problem(self, entry: Egress, *, is_first: bool) -> str:
        if entry.torn_bytes != self._torn:
            return "the unreadable lines before it do not fit"
        if entry.prev != self.start:
            older = ", or the files before this one" if is_first else ""
            return f"a line before it is missing or new{older}"
        return "" if sealed(entry).hash == entry.hash else "the line was changed"

    def _report(self) -> LedgerReport:
        line, problem, name = self._broken or (None, "", "")
        return LedgerReport(
            entries=self._entries,
            torn_lines=self._torn_lines,
            broken_line=line,
            problem=problem,
            torn_end_bytes=0 if self._broken else self._torn,
            broken_file=name,
            last_hash=self.start,
        )


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, one after the other."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(22, "it is not a regular file")
        with path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise FloeError(
            f"cannot read the egress ledger {path}: {error.strerror}. Run this as the user who "
            "runs floe; if it is no file, move it away (it is written when something first leaves)"
        ) from error


def last_entry(fd: int, size: int) -> tuple[Egress | None, int, bytes]:
    """An open file's last whole entry, the torn bytes behind it, and what closes their line."""
    want = _TAIL_BYTES
    while True:
        start = max(0, size - want)
        data = os.pread(fd, size - start, start)
        lines = data.split(b"\n")
        closing = b"\n" if lines[-1] else b""
        torn = 0
        for line in reversed(lines if start == 0 else lines[1:]):
            entry = parsed(line)
            if entry is not None:
                return entry, torn, closing
            torn += len(line)
        if start == 0:
            return None, torn, closing
        want *= 16


def line_of(entry: Egress) -> bytes:
    """The entry as a line of the file."""
    return json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"


def sealed(entry: Egress) -> Egress:
    """The entry with the hash of everything else in it."""
    values = asdict(entry) | {"hash": ""}
    data = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
    return Egress(**(values | {"hash": hashlib.sha256(data).hexdigest()}))


def parsed(line: bytes) -> Egress | None:
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
