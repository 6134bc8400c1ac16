"""Client-level Gaussian noise: what the central and the distributed shield share.

Both need every device to train B alone over one frozen A with orthonormal rows. Then the norm of
B A is that of B, sums of B are sums of products, and noise on B is noise on the product within A's
row space. Dense noise on the product of free factors would bury them and has no low rank.

The promise: of two rounds that differ in one device's data, with the same devices taking part
(`replace_one`), the mean of n >= min_cohort updates moves by at most 2 C / n; the noise on it has
at least `noise_multiplier` C / n per value, which is what the accountant's "all" and "fixed"
sampling count under `replace_one`. Weights are equal and numbers about the training stay on the
device.

Legend: R rank, O outputs of a linear layer.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from floe.core.errors import BadConfig, BadRound
from floe.federated.sampling import Mechanism, Sampling, positive
from floe.federated.shields.clip import clip_change
from floe.federated.shields.release import over_shared_a, releasable
from floe.federated.update import AdapterState, Factors, Update


@dataclass(frozen=True, kw_only=True)
class ClientDp:
    """The terms of client-level privacy. `rank` and `a_seed` are the shared A's.

    `min_cohort` is the fewest updates a total is made of: noise is calibrated to it and a smaller
    round is void (bug-log C10). `secret` False draws noise from the caller's seed, for tests and
    simulations alone: who knows the seed can take the noise off.
    """

    clip_norm: float
    noise_multiplier: float
    min_cohort: int
    rank: int
    a_seed: int = 0
    secret: bool = True

    def __post_init__(self) -> None:
        """Raises BadConfig for numbers that are not finite and above 0 (C11)."""
        positive(self.clip_norm, what="clip norm", param="clip_norm")
        positive(self.noise_multiplier, what="noise multiplier", param="noise_multiplier")
        for name in ("min_cohort", "rank"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} is {getattr(self, name)}; 1 is the least", param=name)

    def mechanism(self, *, selected: int, registered: int) -> Mechanism:
        """What one round costs in which `selected` of `registered` devices are asked.

        Account for it under `replace_one`.

        Raises:
            BadConfig: more are selected than there are, or fewer than the least cohort.
        """
        if not self.min_cohort <= selected <= registered:
            raise BadConfig(
                f"{selected} of {registered} devices are asked, and at least {self.min_cohort} "
                "must answer: raise the fraction or lower min_cohort",
                param="min_cohort",
            )
        everybody = selected == registered
        sampling = Sampling(kind="all" if everybody else "fixed", rate=selected / registered)
        return Mechanism(noise_multiplier=self.noise_multiplier, sampling=sampling, unit="client")

    def require(self, updates: Sequence[str]) -> None:
        """Nothing, where enough different devices are in.

        Raises:
            BadRound: fewer than the least cohort; the noise would not be enough.
        """
        if len(set(updates)) < self.min_cohort:
            raise BadRound(
                f"{len(set(updates))} updates are in and the noise is meant for at least "
                f"{self.min_cohort}: the round is void, for its epsilon would not hold"
            )


def bounded(terms: ClientDp, start: AdapterState | None, update: Update) -> Update:
    """The update over the shared A at full rank, within the ball, weighing as one, without metrics.

    Raises:
        BadUpdate: an array that may not be released, or another A.
    """
    options = {"rank": terms.rank, "a_seed": terms.a_seed}
    state = over_shared_a(releasable(update.state), **options)
    begin = None if start is None else over_shared_a(releasable(start), **options)
    inside = terms.clip_norm * (1 - 1e-5)  # so that float32 rounding stays in the ball
    done = clip_change(begin, state, clip_norm=inside)
    return replace(update, state=done.state, n_examples=1, metrics={})


def with_noise(state: AdapterState, *, std: float, rng: np.random.Generator) -> AdapterState:
    """`state` with Gaussian noise of `std` on every value of B, in the order of names.

    Four draws are added for each value, so that the low bits of one draw are not seen (Holohan and
    Braghin 2021), as Opacus' secure mode does.
    """
    modules = {}
    for name, factors in sorted(state.modules.items()):
        noise_OR = rng.normal(0.0, std / 2, (4, *factors.b_OR.shape)).sum(axis=0)
        b_OR = (factors.b_OR.astype(np.float64) + noise_OR).astype(np.float32)
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
    return AdapterState(base_digest=state.base_digest, modules=modules)


def generator(terms: ClientDp, seed: int) -> np.random.Generator:
    """Where noise comes from: 256 bits of the system's entropy, or `seed` where it is not secret.

    PCG64 is no cryptographic generator; its state cannot be read from noised float32 sums by a
    known attack, but no proof of that is claimed.
    """
    return np.random.default_rng(secrets.randbits(256) if terms.secret else seed)
