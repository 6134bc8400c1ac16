"""`floe` with adapters on a slow disk or link: each read takes as long as a modelled one would.

Run: `python -m floe.evaluation.slow_reads PACE serve ...`. PACE is a file with two numbers, the
bandwidth in MB/s (0 = as the disk is) and the latency in ms; it is read again for each adapter.
Only reading is slowed, by waiting in the thread that reads: no core is taken from anybody.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from floe.adapters.store import AdapterStore
from floe.core.adapter import StoredAdapter

_opened = AdapterStore.opened


def wait_s(pace: str, n_bytes: int) -> float:
    """How long a read of so many bytes is held up."""
    mb_s, latency_ms = (float(x) for x in pace.split())
    return latency_ms / 1000 + n_bytes / (mb_s * 1e6) if mb_s > 0 else 0.0


def main() -> None:
    """Slow the store's reads, then run the command."""
    pace = Path(sys.argv[1])

    @contextmanager
    def opened(self: AdapterStore, stored: StoredAdapter) -> Iterator[Path]:
        with _opened(self, stored) as path:
            time.sleep(wait_s(pace.read_text(), stored.manifest.file_bytes))
            yield path

    AdapterStore.opened = opened  # type: ignore[method-assign]
    sys.argv = ["floe", *sys.argv[2:]]
    runpy.run_module("floe", run_name="__main__")


if __name__ == "__main__":
    main()
