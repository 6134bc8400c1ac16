"""A prompt's direction in fewer numbers: what the learner sees of it.

Legend: W width of the embedding, D width of the context (the reduced embedding and a constant).
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Projection:
    """Embeddings (W,) to contexts (D,), fixed by the encoder's digest and the width asked for.

    For the encoder that ships, the directions in which prompts differ most (held-out routing over
    seven kinds of prompts from 32 of 256 numbers: 0.915 right, all 256 give 0.936, a random
    projection 0.71; `scripts/evaluate_routing.py --write` makes it); for any other, orthonormal
    directions drawn from the digest. The mean squared length is about 1; the last number is
    always 1, for what holds everywhere. With `width` at or above W nothing is reduced.
    """

    def __init__(self, *, encoder_digest: str, embedding_width: int, width: int) -> None:
        self.encoder_digest = encoder_digest
        kept = min(width, embedding_width)
        shipped_WD = shipped_basis(encoder_digest)
        if kept == embedding_width:
            self._basis_WD = np.eye(embedding_width)
        elif shipped_WD is not None and kept <= shipped_WD.shape[1]:
            self._basis_WD = shipped_WD[:, :kept]
        else:
            seed = hashlib.sha256(f"floe context 1 {encoder_digest}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
            random_WD = rng.standard_normal((embedding_width, kept))
            self._basis_WD = np.linalg.qr(random_WD)[0] * np.sqrt(embedding_width / kept)
        self.width = kept + 1

    def __call__(self, embedding_W: NDArray[np.float32]) -> FloatArray:
        """The context of one prompt, shape (D,)."""
        x_D = np.ones(self.width)
        np.matmul(embedding_W, self._basis_WD, out=x_D[:-1])
        return x_D


def shipped_basis(encoder_digest: str) -> FloatArray | None:
    """Directions (W, 64) by falling variance, if they were made with this encoder (B35)."""
    path = files("floe.routing").joinpath("context_basis.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if str(stored["encoder_digest"]) != encoder_digest:
            return None
        return np.asarray(stored["basis_WD"], dtype=np.float64)


def basis_of(embeddings_NW: FloatArray, width: int) -> FloatArray:
    """The `width` directions in which N embeddings differ most, scaled to a mean square of 1."""
    centred_NW = embeddings_NW - embeddings_NW.mean(axis=0)
    basis_WD = np.linalg.svd(centred_NW, full_matrices=False)[2][:width].T
    lengths_N = np.square(embeddings_NW @ basis_WD).sum(axis=1)
    return np.asarray(basis_WD / np.sqrt(lengths_N.mean()))
