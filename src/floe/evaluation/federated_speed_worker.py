"""A measured process: updates from received bytes to one adapter.

`python -m floe.evaluation.federated_speed_worker FOLDER N AGGREGATOR` prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from floe.federated import wire
from floe.federated.aggregate.choose import make_aggregator

RANK = 8


def measure(folder: Path, n: int, aggregator: str) -> dict[str, float]:
    """Seconds of the processor from `n` updates' bytes to the adapter, and the peak memory."""
    received = [path.read_bytes() for path in sorted(folder.glob("*.update"))]
    warm_SS = np.ones((64, 64), np.float32)
    assert (warm_SS @ warm_SS).any()  # the BLAS library starts before the clock
    started = time.process_time()
    total = make_aggregator(aggregator)
    for i in range(n):
        update = wire.decode(received[i % len(received)])
        total.add(update, weight=update.n_examples)
    added = time.process_time()
    done = total.close(rank=RANK)
    ended = time.process_time()
    for i in range(n):  # what a seal costs on top: hashed once where it is checked
        hashlib.sha256(received[i % len(received)]).digest()
    hashed = time.process_time()
    return {
        "n": done.n_updates,
        "add_s": added - started,
        "close_s": ended - added,
        "seconds": ended - started,
        "seal_s": hashed - ended,
        "truncation_error": done.truncation_error,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
