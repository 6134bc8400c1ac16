"""Devices in this very process, for simulations and tests: the same bytes, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from floe.federated.rounds import Arrival, seed_of

Answer = Callable[[bytes], bytes]
"""What a device does with a task's bytes: the bytes it sends back."""


class InlineTransport:
    """Asks the devices one after the other. A share `dropout` of them fails in each round, drawn
    from `seed`; who failed is back in the next (bug-log C26)."""

    def __init__(
        self, devices: Mapping[str, Answer], *, dropout: float = 0.0, seed: int = 0
    ) -> None:
        self._devices = dict(devices)
        self._dropout, self._seed = dropout, seed
        self._exchanges = 0

    def devices(self) -> Sequence[str]:
        """All of them, in order of name."""
        return sorted(self._devices)

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        """The devices' answers, in the order of `tasks`; nobody is late here."""
        del deadline_s
        self._exchanges += 1
        rng = np.random.default_rng(seed_of("dropout", self._seed, self._exchanges))
        for name, task in tasks.items():
            if rng.random() < self._dropout:
                yield Arrival(client=name, error="dropped")
            else:
                yield Arrival(client=name, data=self._devices[name](task))
