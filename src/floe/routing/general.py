"""What general prompts look like: near to them, an adapter must be nearer to be chosen.

A few directions of ordinary instructions and prose (the middles of their clusters). The threshold
for an adapter moves with the prompt:

    threshold + SLOPE * (max(0, highest cosine to a general direction) - USUAL)

Held-out prompts (`scripts/evaluate_routing.py`): 8.1 % of general ones go to an adapter, 11.3 %
with the fixed threshold (self-instruct 15 %, was 22 %), and of the adapters' own 93.6 % have the
right one among the chosen, 91.7 % before. SLOPE, the number of directions and the threshold were
chosen by cross-validation on other prompts; USUAL keeps the threshold's meaning for embeddings
that have no such directions.

Legend: G directions, W width of the embedding, N texts.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

DIRECTIONS = 4
SLOPE = 0.5
USUAL = 0.16
_ROUNDS = 30


class General:
    """General directions (G, W), unit vectors of one encoder; none = a fixed threshold."""

    def __init__(self, directions_GW: NDArray[np.float32] | None = None) -> None:
        self._directions_GW = directions_GW

    def threshold(self, embedding_W: NDArray[np.float32], threshold: float) -> float:
        """The threshold for one prompt."""
        if self._directions_GW is None:
            return threshold
        nearest = max(0.0, float((self._directions_GW @ embedding_W).max()))
        return threshold + SLOPE * (nearest - USUAL)


def shipped_general(encoder_digest: str) -> General:
    """The directions that come with Floe, if they were made with this encoder (B35)."""
    path = files("floe.routing").joinpath("general.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if str(stored["encoder_digest"]) != encoder_digest:
            return General()
        return General(stored["directions_GW"].astype(np.float32))


def directions_of(
    embeddings_NW: NDArray[np.float64], count: int, *, seed: int
) -> NDArray[np.float64]:
    """The middles of `count` clusters of unit vectors, by spherical k-means, seeded."""
    rng = np.random.default_rng(seed)
    middles_GW = embeddings_NW[rng.choice(len(embeddings_NW), count, replace=False)]
    for _ in range(_ROUNDS):
        nearest_N = (embeddings_NW @ middles_GW.T).argmax(axis=1)
        for g in range(count):
            mine = embeddings_NW[nearest_N == g]
            if len(mine):
                total_W = mine.sum(axis=0)
                middles_GW[g] = total_W / np.linalg.norm(total_W)
    return middles_GW
