"""Clocks held for a while, and put back: on exit, exception, SIGTERM, and after kill -9.

What was in force is written to a lease file before the first change. The file is locked while its
holder lives, so a lease whose lock is free belongs to somebody who is gone: the next start puts
the clocks back (invariant 8). After a reboot the kernel has done so already.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from floe.core.errors import Busy, KnobFailed
from floe.core.files import atomic_write
from floe.power.base import Knobs, Saved

_VERSION = 1
LEASE = "lease.json"
"""The file in the folder."""
_LOCK = "lease.lock"
_WAITS_S = (0.0, 0.01, 0.05)
"""Before each try: whoever only asks who the holder is has the lock for a moment."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What was found at the start: `state` says it, `faults` what could not be put back."""

    state: str
    faults: tuple[str, ...] = ()


@contextmanager
def held(knobs: Knobs, *, folder: Path, boot_id: str | None = None) -> Iterator[Knobs]:
    """`knobs`, to be changed at will inside the block; they are put back when it ends.

    A lease that somebody left behind is repaired first. SIGTERM ends the block like an exit (in
    the main thread). Knobs that only give advice are held without a lease.

    Raises:
        Busy: another process or block holds clocks.
        KnobFailed: clocks could not be put back; the lease is kept for the next start.
    """
    if knobs.advice_only:
        yield knobs
        return
    with _locked(folder) as lease:
        repaired = _repair(knobs, lease, boot_id or _boot())
        if repaired.faults:
            raise KnobFailed(_not_put_back(repaired.faults, lease))
        saved = knobs.save()
        _write(lease, saved, boot_id or _boot())
        with _ended_by_sigterm() as be_deaf:
            try:
                yield knobs
            finally:
                be_deaf()
                faults = knobs.put_back(saved)
                if not faults:
                    lease.unlink(missing_ok=True)
        if faults:
            raise KnobFailed(_not_put_back(faults, lease))


def repair(knobs: Knobs, *, folder: Path, boot_id: str | None = None) -> Repair:
    """Put back what a holder that was killed left behind.

    Raises:
        Busy: a holder is alive: nothing is wrong.
    """
    with _locked(folder) as lease:
        return _repair(knobs, lease, boot_id or _boot())


def holder(folder: Path) -> int | None:
    """The process that holds clocks now; None if nobody does. Nothing is written."""
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return _pid(folder)
    return None


def _repair(knobs: Knobs, lease: Path, boot_id: str) -> Repair:
    if not lease.exists():
        return Repair(state="nothing was left behind")
    try:
        kept = json.loads(lease.read_text(encoding="utf-8"))
        saved = tuple(Saved(place=str(s["place"]), value=str(s["value"])) for s in kept["saved"])
        sound = kept["version"] == _VERSION
    except (ValueError, KeyError, TypeError):
        sound, saved, kept = False, (), {}
    if not sound:
        lease.replace(lease.with_suffix(".bad"))
        return Repair(state=f"the lease was damaged and is kept as {lease.stem}.bad")
    if kept.get("boot_id") != boot_id:
        lease.unlink()
        return Repair(state="the machine was restarted since: its clocks are its own")
    foreign = tuple(f"{s.place}: not one of {knobs.name}" for s in saved if not knobs.owns(s.place))
    faults = foreign + knobs.put_back([s for s in saved if knobs.owns(s.place)])
    if not faults:
        lease.unlink()
        return Repair(state="clocks of a killed holder were put back")
    return Repair(state="clocks could not be put back", faults=faults)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """The lease's path, while nobody else has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="utf-8") as lock:
        if not any(_taken(lock, wait_s) for wait_s in _WAITS_S):
            raise Busy(
                f"the clocks are held by process {_pid(folder) or 'unknown'}: stop it, or use "
                'power.knobs = "noop"'
            )
        _note_pid(lock)
        yield folder / LEASE


def _taken(lock: TextIO, wait_s: float) -> bool:
    time.sleep(wait_s)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _note_pid(lock: TextIO) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def _pid(folder: Path) -> int | None:
    try:
        return int((folder / _LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(lease: Path, saved: tuple[Saved, ...], boot_id: str) -> None:
    with atomic_write(lease) as file:
        file.write(
            json.dumps(
                {
                    "version": _VERSION,
                    "pid": os.getpid(),
                    "boot_id": boot_id,
                    "saved": [asdict(s) for s in saved],
                }
            ).encode()
        )


@contextmanager
def _ended_by_sigterm() -> Iterator[Callable[[], None]]:
    """SIGTERM raises SystemExit here, unless somebody handles it already (a server does).

    What is yielded makes the process deaf to it and to Ctrl-C, so that putting back is not cut.
    """
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def be_deaf() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)

    if before[signal.SIGTERM] is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield be_deaf
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _not_put_back(faults: tuple[str, ...], lease: Path) -> str:
    return (
        f"{len(faults)} clocks could not be put back ({'; '.join(faults)}); {lease} keeps what "
        "they were: try floe power reset"
    )
