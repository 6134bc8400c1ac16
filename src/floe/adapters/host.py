"""Adapters in host memory: sealed anonymous files, verified once, that no disk is needed for.

Linux's memfd: the engine opens /proc/self/fd/N like any file, and the seal means that the bytes
loaded are the bytes that were checked (bug-log A05). Bytes count as the kernel does, in pages.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PAGE = 4096
_MOST_FILES = 256
"""Each holds a file descriptor."""


@dataclass(kw_only=True, eq=False)
class _Held:
    fd: int
    n_bytes: int
    pins: int = 0
    is_gone: bool = False


def is_supported() -> bool:
    """Whether this system has sealed files in memory that can be opened by path."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


class HostMemory:
    """At most `budget_bytes` of adapter files, least recently opened out first; thread-safe."""

    def __init__(self, *, budget_bytes: int) -> None:
        self._budget = budget_bytes if is_supported() else 0
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = threading.RLock()
        self._reserved = 0
        self.hits = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in whole pages."""
        return sum(held.n_bytes for held in list(self._held.values()))

    def has(self, key: str) -> bool:
        """Whether the file is here."""
        return key in self._held

    @contextmanager
    def opened(
        self, key: str, n_bytes: int, fill: Callable[[BinaryIO], None]
    ) -> Iterator[Path | None]:
        """A path of the file, filled once; None if there is no room for it.

        `fill` writes its checked bytes; what it raises goes to the caller, and nothing is kept.
        """
        held = self._take(key)
        if held is None:
            held = self._filled(key, _pages(n_bytes), fill)
        try:
            yield Path(f"/proc/self/fd/{held.fd}") if held is not None else None
        finally:
            if held is not None:
                with self._lock:
                    held.pins -= 1
                    self._close_gone(held)

    def forget(self, key: str) -> None:
        """Let go of the file, at once or when nobody reads it any more."""
        with self._lock:
            held = self._held.pop(key, None)
            if held is not None:
                held.is_gone = True
                self._close_gone(held)

    def close(self) -> None:
        """Let go of everything."""
        for key in list(self._held):
            self.forget(key)

    def check(self) -> None:
        """Raise RuntimeError if the books do not add up."""
        with self._lock:
            for key, held in self._held.items():
                if (
                    held.is_gone
                    or held.pins < 0
                    or _pages(os.fstat(held.fd).st_size) > held.n_bytes
                ):
                    raise RuntimeError(f"host memory: file {key[:12]} is inconsistent")
            if self.used_bytes + self._reserved > self._budget:
                raise RuntimeError("host memory: files exceed the budget")

    def _take(self, key: str) -> _Held | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                held.pins += 1
                self.hits += 1
            return held

    def _filled(self, key: str, n_bytes: int, fill: Callable[[BinaryIO], None]) -> _Held | None:
        if not self._reserve(n_bytes):
            return None
        try:
            fd = os.memfd_create(f"floe-{key[:16]}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                with os.fdopen(os.dup(fd), "wb") as out:
                    fill(out)
                if _pages(os.fstat(fd).st_size) > n_bytes:
                    os.close(fd)
                    return None
                seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
            except BaseException:
                os.close(fd)
                raise
            held = _Held(fd=fd, n_bytes=n_bytes, pins=1)
            with self._lock:
                self.forget(key)
                self._held[key] = held
            return held
        finally:
            with self._lock:
                self._reserved -= n_bytes

    def _reserve(self, n_bytes: int) -> bool:
        """Make room; what is being read stays."""
        with self._lock:
            free = self._budget - self.used_bytes - self._reserved
            if n_bytes > self._budget:
                return False
            for key, held in list(self._held.items()):
                if free >= n_bytes and len(self._held) < _MOST_FILES:
                    break
                if not held.pins:
                    free += held.n_bytes
                    self.forget(key)
            if free < n_bytes or len(self._held) >= _MOST_FILES:
                return False
            self._reserved += n_bytes
            return True

    def _close_gone(self, held: _Held) -> None:
        if held.is_gone and not held.pins:
            os.close(held.fd)


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // _PAGE) * _PAGE
