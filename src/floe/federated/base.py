"""The protocols of an adapter's life; `learn.py` calls them in order.

Legend as in `update.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from floe.federated.rounds import Arrival
from floe.federated.update import AdapterState, Update


@dataclass(frozen=True, kw_only=True, eq=False)
class Aggregate:
    """Several updates as one adapter.

    `truncation_error` and `compression_error` are relative Frobenius errors against the weighted
    mean of the products: by the cut to `state.rank`, and by compressing while streaming.
    """

    state: AdapterState
    n_updates: int
    n_examples: int
    truncation_error: float = 0.0
    compression_error: float = 0.0


class Aggregator(Protocol):
    """Adds updates up one by one, in constant memory unless its docstring says otherwise."""

    name: str

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in. `weight` is finite and above 0.

        Raises:
            BadUpdate: it does not fit those before it; nothing was taken in.
        """

    def close(self, *, rank: int) -> Aggregate:
        """The weighted mean, cut to `rank`.

        Raises:
            BadRound: nothing was added.
        """


class Trainer(Protocol):
    """Local training on a device."""

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        """Train from `start` (a fresh adapter when None) on the device's own examples.

        `start` may have another rank; the trainer brings it to its own.
        """

    def loss(self, state: AdapterState | None) -> float:
        """Mean loss per answer token on the device's own validation examples, in nats."""


class Shield(Protocol):
    """A two-ended protection: what the device does before upload, what the server undoes after.

    `on_device` sees the adapter the round started from, so that it may clip the change alone.
    """

    name: str

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update as it may leave the device."""

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The aggregate of the named clients' updates, as it may be published."""


class Meeting(Protocol):
    """Where devices are met."""

    def devices(self) -> Sequence[str]:
        """Names of the devices that can be asked now."""


class Transport(Meeting, Protocol):
    """Brings tasks to devices and their answers back."""

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        """Ask each device; yield what arrives, as it arrives, until all have answered or the
        deadline is over. Late answers to earlier questions may be among it."""
