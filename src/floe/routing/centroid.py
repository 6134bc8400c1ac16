"""An adapter's place among the topics: the middle of its training prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floe.core.adapter import Centroid
from floe.core.errors import BadRequest


class Embedding(Protocol):
    """Texts to unit vectors of shape (D,); zeros for a text without content."""

    @property
    def digest(self) -> str:
        """Identity of weights and preprocessing; vectors of different digests do not compare."""
        ...

    def __call__(self, text: str) -> NDArray[np.float32]:
        """The vector of one text."""
        ...


def centroid_of(prompts: Iterable[str], embedding: Embedding) -> Centroid:
    """The normalised mean of the prompts' unit vectors; each prompt counts the same.

    Raises:
        BadRequest: no prompt with content.
    """
    total_D = sum((embedding(p).astype(np.float64) for p in prompts), start=np.zeros(1))
    length = np.linalg.norm(total_D)
    if not length > 0:
        raise BadRequest("a centroid needs at least one prompt with content", param="prompts")
    vector = tuple(round(float(x), 7) for x in total_D / length)
    return Centroid(encoder_digest=embedding.digest, vector=vector)
