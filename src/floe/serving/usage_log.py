"""Which adapter was used when, how big it is and what a load of it costs: a trace, without text.

Lines are `time,key,size,load_ms,tenant` with seconds since the epoch, content digest, bytes,
milliseconds and name: what `floe cache simulate` and `floe cache fit` read.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("floe.serving")

USAGE = "usage.csv"
_HEAD = "time,key,size,load_ms,tenant\n"


def older(path: Path) -> Path:
    """Where the older half of a log lies."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


@contextmanager
def joined(path: Path) -> Iterator[Path]:
    """A log as one file: the older half, if there is one, comes first."""
    if not older(path).is_file():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name
        with whole.open("wb") as out:
            for half in (older(path), path):
                with half.open("rb") as part:
                    if half == path:
                        part.readline()  # its header
                    shutil.copyfileobj(part, out)
        yield whole


class UsageLog:
    """Appends lines from one thread of its own; both halves together stay within `most_bytes`.

    A full half takes the place of the older one. A disk that cannot be written to is said once in
    the log and stops the record, never a request.
    """

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._path, self._half_bytes = path, most_bytes // 2
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="floe-usage")
        self._is_broken = False

    def add(self, *, at_s: float, digest: str, n_bytes: int, load_ms: float, tenant: str) -> None:
        """A use of an adapter; returns at once."""
        line = f"{at_s:.3f},{digest},{n_bytes},{load_ms:.3f},{tenant}\n"
        self._worker.submit(self._written, line)

    def close(self) -> None:
        """Write what is waiting and stop."""
        self._worker.shutdown()

    def _written(self, line: str) -> None:
        if self._is_broken:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            size = self._path.stat().st_size if self._path.exists() else 0
            if size and size + len(line) > self._half_bytes:
                self._path.replace(older(self._path))
                size = 0
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line if size else _HEAD + line)
        except OSError as error:
            self._is_broken = True
            log.error("no more uses are recorded in %s: %s", self._path, error.strerror)
