"""The SLM's share at a place: a small learned network, and the baselines beside it.

w = base + (1 - base) trouble, with base in (0, 1) from the two distributions alone and trouble in
[0, 1) rising with the age of the answer, the round trip and the loss: whatever was learned, a bad
network can only raise the SLM's share. F = features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from floe.fusion.features import edge_features, features
from floe.fusion.net import Net
from floe.fusion.weigh import Network, Seen, Weigh

GRID = tuple(round(0.05 * i, 2) for i in range(21))


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """How fast the share rises: half-way to 1 after `half_*`. Set by hand, not learned."""

    half_age_ms: float = 1_000.0
    half_round_trip_ms: float = 2_000.0
    half_loss: float = 0.5

    def __call__(self, network: Network) -> float:
        """In [0, 1], 0 for a quiet network, never falling in any of its three arguments."""
        halves = (
            max(network.age_ms, 0.0) / self.half_age_ms
            + max(network.round_trip_ms, 0.0) / self.half_round_trip_ms
            + max(network.loss, 0.0) / self.half_loss
        )
        return 1.0 - exp(-log(2.0) * halves)


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """`Weigh` by a network, for advice in the words of one tokenizer; else by `otherwise`.

    `cloud_tokenizer` is the digest the network was trained with, `own_tokenizer` the SLM's, which
    stands for advice that names none.
    """

    net: Net
    cloud_tokenizer: str
    own_tokenizer: str
    otherwise: Weigh
    trouble: Trouble = field(default_factory=Trouble)

    def __call__(self, seen: Seen) -> float:
        """The SLM's share w in [0, 1]."""
        if (seen.advice.tokenizer or self.own_tokenizer) != self.cloud_tokenizer:
            base = self.otherwise(seen)
        else:
            base = float(share(self.net(features(seen))))
        return base + (1.0 - base) * self.trouble(seen.network)


def share(out: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logistic function, without overflow."""
    w: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * out))
    return w


def entropy_rule(
    *, surest: float = 0.9, least_sure: float = 0.1, middle_nats: float = 1.0
) -> Weigh:
    """A baseline: the SLM's share falls from `surest` to `least_sure` as its entropy rises."""

    def weigh(seen: Seen) -> float:
        return float(entropy_share(edge_features(seen.log_q_V)[0], surest, least_sure, middle_nats))

    return weigh


def entropy_share(
    entropy: float | NDArray[np.float64], surest: float, least_sure: float, middle_nats: float
) -> NDArray[np.float64]:
    """The rule's share for entropies in nats; `middle_nats` is where it is half-way."""
    return least_sure + (surest - least_sure) * np.exp(
        -log(2.0) * np.asarray(entropy, dtype=np.float64) / middle_nats
    )


def oracle_shares(
    q_T: NDArray[np.float64], p_T: NDArray[np.float64], grid: tuple[float, ...] = GRID
) -> NDArray[np.float64]:
    """The best share of a grid for each place, knowing the reference token: evaluation only.

    `q_T` and `p_T` are the two models' probabilities of the reference tokens.
    """
    best = np.where(q_T >= p_T, max(grid), min(grid))
    return best.astype(np.float64)
