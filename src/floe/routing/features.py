"""A prompt's direction in fewer numbers: what the learner sees of it.

Legend: W width of the embedding, D width of the context (the reduced embedding and a constant).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Projection:
    """Embeddings (W,) to contexts (D,): an orthonormal projection, fixed by the encoder's digest.

    Lengths keep their expected value; the last number is always 1, for what holds everywhere.
    With `width` at or above W nothing is reduced.
    """

    def __init__(self, *, encoder_digest: str, embedding_width: int, width: int) -> None:
        self.encoder_digest = encoder_digest
        kept = min(width, embedding_width)
        self.width = kept + 1
        if kept == embedding_width:
            self._basis_WD = np.eye(embedding_width)
        else:
            seed = hashlib.sha256(f"floe context 1 {encoder_digest}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
            random_WD = rng.standard_normal((embedding_width, kept))
            self._basis_WD = np.linalg.qr(random_WD)[0] * np.sqrt(embedding_width / kept)

    def __call__(self, embedding_W: NDArray[np.float32]) -> FloatArray:
        """The context of one prompt, shape (D,)."""
        return np.append(embedding_W.astype(np.float64) @ self._basis_WD, 1.0)
