"""8-bit uploads with error feedback: what rounding lost is added to the device's next update."""

from __future__ import annotations

from collections.abc import Sequence

from floe.federated import wire
from floe.federated.base import Aggregate
from floe.federated.shields.release import releasable
from floe.federated.update import AdapterState, Update


class Quantize:
    """Rounds every row to 255 levels. Encode the result at 8 bits: it loses nothing more.

    The memory of what was lost is kept by cluster, in this object: it stays on the device. Without
    `feedback` nothing is remembered, as client-level noise needs it: there, put this shield last,
    and rounding is work on a number that is private already.
    """

    name = "quantize"

    def __init__(self, *, feedback: bool = True) -> None:
        self._feedback = feedback
        self._lost: dict[str, AdapterState] = {}

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update as 8 bits give it back.

        Raises:
            BadUpdate: an array that may not be released.
        """
        del start, seed
        releasable(update.state)
        data, lost = wire.quantize(
            update, self._lost.get(update.cluster), keep_factors=not self._feedback
        )
        if self._feedback:
            self._lost[update.cluster] = lost
        return wire.decode(data)

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The total as it is."""
        del updates, seed
        return total
