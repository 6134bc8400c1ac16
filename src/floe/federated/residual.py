"""8-bit uploads whose rounding is made good in the next round, by a device that is not always on.

The residual lies on the device's disk, by cluster; it never leaves the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from floe.core.errors import BadUpdate
from floe.core.files import atomic_write
from floe.federated import wire
from floe.federated.base import Aggregate
from floe.federated.shields.release import releasable
from floe.federated.update import AdapterState, Update


class QuantizeOnDisk:
    """`shields.Quantize` whose memory outlives the process. Encode the result at 8 bits."""

    name = "quantize"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update as 8 bits give it back.

        Raises:
            BadUpdate: an array that may not be released.
        """
        del start, seed
        releasable(update.state)
        path = self._folder / f"{hashlib.sha256(update.cluster.encode()).hexdigest()[:16]}.lost"
        data, lost = wire.quantize(update, _read(path, update.state.base_digest))
        with atomic_write(path) as file:
            file.write(wire.encode(Update(client="", round_number=0, state=lost, n_examples=0)))
        return wire.decode(data)

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The total as it is."""
        del updates, seed
        return total


def _read(path: Path, base_digest: str) -> AdapterState | None:
    """What rounding lost last time; None where there is nothing, or nothing that fits."""
    if not path.is_file():
        return None
    try:
        state = wire.decode(path.read_bytes()).state
    except BadUpdate:
        return None  # a lost residual costs one round's rounding, no more
    return state if state.base_digest == base_digest else None
