"""Privacy spent, written before it is spent: an append-only file of JSON lines in a chain.

A line is on the disk (fsync) before training starts, so whatever kills the process later, what it
did is counted. A line torn by a crash counts as the costliest round known: never as nothing. What
is deleted as a whole cannot be noticed; keep the file as long as the data.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from floe.core.errors import FloeError, PrivacySpent
from floe.core.files import sync_folder
from floe.federated.accountant import epsilon
from floe.federated.sampling import Adjacency, Mechanism, Sampling, Unit, positive

GENESIS = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Spend:
    """One line. `torn_bytes` counts what was unreadable before it; `prev` and `hash` chain."""

    time: str
    round_number: int
    noise_multiplier: float
    kind: str
    rate: float
    steps: int
    unit: str
    note: str
    prev: str
    torn_bytes: int = 0
    hash: str = ""

    def mechanism(self) -> Mechanism:
        """What was reserved.

        Raises:
            BadConfig: the line's numbers are out of range.
        """
        unit: Unit = "client" if self.unit == "client" else "example"
        sampling = Sampling(kind=self.kind, rate=self.rate)  # type: ignore[arg-type]
        return Mechanism(
            noise_multiplier=self.noise_multiplier, sampling=sampling, steps=self.steps, unit=unit
        )


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """Everything in the file. `torn` are unreadable lines that no entry has closed yet."""

    entries: tuple[Spend, ...]
    torn: int = 0
    torn_bytes: int = 0
    ends_with_newline: bool = True

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What the readable lines reserve, oldest first."""
        return tuple(e.mechanism() for e in self.entries)


class DpLedger:
    """A device's (or a server's) budget: `target_epsilon` at `delta` under `adjacency`.

    Safe for processes (flock). One unit in one file.
    """

    def __init__(
        self,
        *,
        path: Path,
        target_epsilon: float,
        delta: float,
        adjacency: Adjacency = "add_remove",
    ) -> None:
        """Open nothing yet.

        Raises:
            BadConfig: a target or delta out of range.
        """
        self._target = positive(target_epsilon, what="target epsilon", param="target_epsilon")
        self._path, self._delta, self._adjacency = path, delta, adjacency
        epsilon((), delta=delta, adjacency=adjacency)  # says at once what is out of range

    @property
    def terms(self) -> str:
        """On which terms the epsilon holds, for a report."""
        return f"delta {self._delta:g}, {self._adjacency}, target {self._target:g}"

    def reserve(self, mechanism: Mechanism, *, round_number: int = 0, note: str = "") -> Spend:
        """Write down what is about to be spent; train only when this returns.

        Raises:
            PrivacySpent: it would pass the target; nothing was written, nothing may be trained.
            FloeError: the file is broken or cannot be written; nothing may be trained.
        """
        with self._locked() as fd:
            state = _read(self._path, fd)
            torn = self._worst([*state.mechanisms, mechanism]) if state.torn else None
            owed = [torn] * state.torn if torn is not None else []
            total = self._cost([*state.mechanisms, *owed, mechanism])
            if not total <= self._target:
                self._refuse(state, owed, total, round_number)
            last = state.entries[-1].hash if state.entries else GENESIS
            lines: list[Spend] = []
            torn_bytes = state.torn_bytes
            for one in owed:
                entry = _sealed(one, 0, "a line torn by a crash", last, torn_bytes)
                lines, last, torn_bytes = [*lines, entry], entry.hash, 0
            spend = _sealed(mechanism, round_number, note[:200], last, torn_bytes)
            data = b"".join(_line(entry) for entry in [*lines, spend])
            _append(fd, data if state.ends_with_newline else b"\n" + data)
        return spend

    def epsilon(self) -> float:
        """What is spent so far; infinity where nothing but a torn line is known.

        Raises:
            FloeError: the file is broken or cannot be read.
        """
        state = self.read()
        if not state.torn:
            return self._cost(state.mechanisms)
        if not state.entries:
            return math.inf
        return self._cost([*state.mechanisms, *[self._worst(state.mechanisms)] * state.torn])

    def read(self) -> LedgerState:
        """The whole file, checked line by line.

        Raises:
            FloeError: a line was changed, added or removed, or the file cannot be read.
        """
        if not self._path.exists():
            return LedgerState(entries=())
        with self._locked() as fd:
            return _read(self._path, fd)

    def _cost(self, mechanisms: Sequence[Mechanism]) -> float:
        return epsilon(mechanisms, delta=self._delta, adjacency=self._adjacency)

    def _worst(self, mechanisms: Sequence[Mechanism]) -> Mechanism:
        return max(mechanisms, key=lambda m: self._cost([m]))

    def _refuse(
        self, state: LedgerState, owed: Sequence[Mechanism], total: float, round_number: int
    ) -> None:
        before = self._cost([*state.mechanisms, *owed])
        torn = f", {state.torn} of it unreadable and counted as the costliest" if owed else ""
        raise PrivacySpent(
            f"round {round_number} would bring epsilon to {total:.3g}, above the target "
            f"{self._target:g} (delta {self._delta:g}, {self._adjacency}); {before:.3g} is spent "
            f"in {len(state.entries) + state.torn} rounds{torn}. Nothing was trained. More noise, "
            "fewer steps or a lower sampling rate may fit: floe fed epsilon --target-epsilon",
            param="target_epsilon",
        )

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(22, "it is not a regular file")
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_size == 0:
                    sync_folder(self._path.parent)
                yield fd
            finally:
                os.close(fd)  # gives the lock back
        except OSError as error:
            raise FloeError(
                f"cannot use the privacy ledger {self._path}: {error.strerror}. Nothing was "
                "trained. Make it writable by the user who runs floe"
            ) from error


def _read(path: Path, fd: int) -> LedgerState:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    entries: list[Spend] = []
    last, torn, torn_bytes = GENESIS, 0, 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        entry = _parsed(line)
        if entry is None:
            torn, torn_bytes = torn + 1, torn_bytes + len(line)
            continue
        if entry.prev != last or entry.torn_bytes != torn_bytes or _digest(entry) != entry.hash:
            raise FloeError(
                f"the privacy ledger {path} was changed at line {number}: what is spent cannot be "
                "known, so nothing may be trained. Restore the file, or give up the data's budget "
                "and begin with other data"
            )
        entries.append(entry)
        last, torn, torn_bytes = entry.hash, 0, 0
    return LedgerState(
        entries=tuple(entries),
        torn=torn,
        torn_bytes=torn_bytes,
        ends_with_newline=not data or data.endswith(b"\n"),
    )


def _parsed(line: bytes) -> Spend | None:
    try:
        entry = Spend(**json.loads(line))
        entry.mechanism()
    except (ValueError, TypeError, RecursionError, FloeError):
        return None
    return entry


def _sealed(m: Mechanism, round_number: int, note: str, prev: str, torn_bytes: int) -> Spend:
    entry = Spend(
        time=datetime.now(UTC).isoformat(timespec="microseconds"),
        round_number=round_number,
        noise_multiplier=m.noise_multiplier,
        kind=m.sampling.kind,
        rate=m.sampling.rate,
        steps=m.steps,
        unit=m.unit,
        note=note,
        prev=prev,
        torn_bytes=torn_bytes,
    )
    return Spend(**(asdict(entry) | {"hash": _digest(entry)}))


def _digest(entry: Spend) -> str:
    text = json.dumps(asdict(entry) | {"hash": ""}, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _line(entry: Spend) -> bytes:
    return json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n"


def _append(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)
