"""Where a cluster's adapter is routed to: a point among topics that tells nothing of anybody.

Two ways. `public_centroid` (the one `floe` publishes with) takes public prompts alone and weighs
them by how much the adapter helps there: it is computed from the adapter, which is published
anyway, and from what everybody has, so that it says nothing that the adapter does not say
(post-processing; a promise of differential privacy that holds for the adapter holds for both).

`private_centroid` adds up vectors of the devices' own prompts under the rules of their updates:
each is clipped to length 1, Gaussian noise is added to the sum, and fewer than a minimum give
nothing. That is one more release: account for it (`Mechanism` with this noise multiplier).

Legend: A adapters, N prompts or devices, D width of the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from floe.core.adapter import Centroid
from floe.core.errors import BadConfig, BadRound

Vectors = NDArray[np.float32] | NDArray[np.float64]

SENSITIVITY = 1.0
"""How far one device more or less moves the sum; another in its place moves it twice as far."""
_DIGITS = 7


def public_centroid(
    vectors_ND: Vectors, gains_N: Sequence[float], *, encoder_digest: str, share: float = 0.25
) -> Centroid:
    """The middle of the public prompts that the adapter helps with most.

    `vectors_ND`: the prompts' embeddings. `gains_N`: by how much the adapter lowers the loss of
    each prompt's answer, nats a token. The best `share` of the prompts count, each by its gain.

    Raises:
        BadRound: the adapter helps with none of them. BadConfig: shapes or values that do not fit.
    """
    vectors, gains = np.asarray(vectors_ND, np.float64), np.asarray(gains_N, np.float64)
    if vectors.ndim != 2 or gains.shape != (len(vectors),) or not len(vectors):
        raise BadConfig("a gain for each public prompt, and one prompt at least", param="gains")
    if not (np.isfinite(vectors).all() and np.isfinite(gains).all()):
        raise BadConfig("embeddings and gains must be finite", param="gains")
    if not 0.0 < share <= 1.0:
        raise BadConfig("share must be above 0 and at most 1", param="share")
    best = np.argsort(-gains, kind="stable")[: max(1, round(share * len(gains)))]
    weights = np.maximum(gains[best], 0.0)
    if not weights.any():
        raise BadRound("the adapter helps with none of the public prompts: it is reached by name")
    return _centroid(weights @ _unit(vectors[best]), encoder_digest)


def contrasted(gains_AN: Vectors) -> NDArray[np.float64]:
    """What each of several adapters gains on each prompt beyond the mean of all of them.

    Every adapter learns to answer in the house's form, which helps everywhere; what sets it apart
    is its topic. With one adapter alone the gains stay as they are.
    """
    gains = np.asarray(gains_AN, np.float64)
    return gains - gains.mean(axis=0) if len(gains) > 1 else gains


def private_centroid(
    vectors_ND: Vectors,
    *,
    encoder_digest: str,
    noise_multiplier: float,
    min_members: int,
    rng: np.random.Generator,
) -> Centroid:
    """The noisy middle of one vector from each device.

    Each row counts for one device, cut to length 1. The noise has a standard deviation of
    `noise_multiplier` x `SENSITIVITY` in each coordinate; 0 is no promise at all.

    Raises:
        BadRound: fewer than `min_members` rows, or nothing but noise: no centroid.
        BadConfig: values that are not finite, or a noise multiplier below 0.
    """
    vectors = np.asarray(vectors_ND, np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise BadConfig("a centroid needs one finite vector from each device", param="vectors")
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0.0):
        raise BadConfig("noise_multiplier must be finite and 0 or more", param="noise_multiplier")
    if len(vectors) < max(1, min_members):
        raise BadRound(f"a centroid of {len(vectors)} devices would show theirs: {min_members} are "
                       "the least")  # fmt: skip
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    clipped = vectors / np.maximum(lengths, SENSITIVITY)
    noise = rng.normal(0.0, noise_multiplier * SENSITIVITY, vectors.shape[1])
    return _centroid(clipped.sum(axis=0) + noise, encoder_digest)


def signal_to_noise(n_devices: int, width: int, noise_multiplier: float) -> float:
    """Length of `n_devices` agreeing unit vectors over the noise's: below 2, routing suffers."""
    noise = noise_multiplier * SENSITIVITY * math.sqrt(width)
    return n_devices / noise if noise > 0 else math.inf


def _unit(vectors_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.where(lengths > 0, lengths, 1.0)


def _centroid(total_D: NDArray[np.float64], encoder_digest: str) -> Centroid:
    length = float(np.linalg.norm(total_D))
    if not length > 0.0:
        raise BadRound("the prompts cancel out: there is no middle to route to")
    vector = tuple(round(float(x), _DIGITS) for x in total_D / length)
    return Centroid(encoder_digest=encoder_digest, vector=vector)
