"""Client-level privacy without trust in the server: each device adds its share of the noise.

The server must see sums alone (secure aggregation): one update alone carries only a share. Devices
must not collude: of m that tell the server their noise, the rest's is what protects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from floe.federated.base import Aggregate
from floe.federated.shields.gaussian import ClientDp, bounded, generator, with_noise
from floe.federated.update import AdapterState, Update


class NoiseDistributed:
    """Noise of `noise_multiplier` x clip norm / sqrt(least cohort) on each device's B."""

    name = "noise-distributed"

    def __init__(self, *, terms: ClientDp) -> None:
        self.terms = terms

    @property
    def share_std(self) -> float:
        """Of each value of one device's B; the least cohort's sum has the asked deviation."""
        terms = self.terms
        return terms.noise_multiplier * terms.clip_norm / math.sqrt(terms.min_cohort)

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update within the ball, over the shared A at full rank, with its share of noise.

        Raises:
            BadUpdate: an array that may not be released, or another A.
        """
        inside = bounded(self.terms, start, update)
        rng = generator(self.terms, seed)
        return replace(inside, state=with_noise(inside.state, std=self.share_std, rng=rng))

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The total as it is, where enough shares are in it.

        Raises:
            BadRound: fewer than the noise is meant for (C10).
        """
        del seed
        self.terms.require(updates)
        return total
