"""Client-level privacy with a trusted server: devices clip, the server adds the noise once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floe.federated.base import Aggregate
from floe.federated.shields.gaussian import ClientDp, bounded, generator, with_noise
from floe.federated.shields.release import over_shared_a, releasable
from floe.federated.update import AdapterState, Update


class NoiseCentral:
    """Noise of `noise_multiplier` x clip norm / least cohort on the mean.

    The server sees each clipped update, so it is trusted with them; who sees the published adapter
    is not. It must not take a device's word for the clip: call `on_receipt` on what arrives, or
    refuse changes above the clip norm.
    """

    name = "noise-central"

    def __init__(self, *, terms: ClientDp) -> None:
        self.terms = terms

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The update within the ball, over the shared A, weighing as one.

        Raises:
            BadUpdate: an array that may not be released, or another A.
        """
        del seed
        return bounded(self.terms, start, update)

    def on_receipt(self, start: AdapterState | None, update: Update) -> Update:
        """The same at the server; an update that kept to the terms is not changed.

        Raises:
            BadUpdate: as `on_device`.
        """
        return bounded(self.terms, start, update)

    def on_server(self, total: Aggregate, updates: Sequence[str], *, seed: int) -> Aggregate:
        """The mean with noise, over the shared A.

        Raises:
            BadRound: fewer updates than the noise is meant for. BadUpdate: another A.
        """
        terms = self.terms
        terms.require(updates)
        state = over_shared_a(releasable(total.state), rank=terms.rank, a_seed=terms.a_seed)
        std = terms.noise_multiplier * terms.clip_norm / terms.min_cohort
        noised = with_noise(state, std=std, rng=generator(terms, seed))
        return replace(total, state=noised)
