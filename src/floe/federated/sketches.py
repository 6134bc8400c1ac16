"""A few thousand numbers in place of an adapter, for grouping hundreds of devices.

Each product B A is seen through two fixed random matrices, (L^T B)(A M): linear in the product, so
that the sketch of a change is the difference of two sketches, and whatever basis the factors are
in. Inner products are kept on average; with S = 16 and a hundred modules cosines are within about
0.03. A server keeps the sketch and lets the update go.

Legend: S side of a sketch, I inputs of a linear layer, O its outputs, N adapters.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from floe.federated.grams import cosines
from floe.federated.products import Doubles
from floe.federated.update import AdapterState, FloatArray

SIDE = 16


class Sketcher:
    """Draws the random matrices once for each side length; one seed for a whole run."""

    def __init__(self, *, side: int = SIDE, seed: int = 0) -> None:
        self._side = side
        self._seed = seed
        self._drawn: dict[tuple[str, str, int], FloatArray] = {}

    def of(self, state: AdapterState) -> Doubles:
        """The sketch of an adapter, modules in order of their names: S * S numbers each."""
        parts = []
        for name in sorted(state.modules):
            factors = state.modules[name]
            n_outputs, n_inputs = factors.shape
            left_SR = self._matrix(name, "out", n_outputs) @ factors.b_OR
            right_RS = factors.a_RI @ self._matrix(name, "in", n_inputs).T
            parts.append((left_SR @ right_RS).ravel())
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)

    def _matrix(self, name: str, side: str, length: int) -> FloatArray:
        key = (name, side, length)
        if key not in self._drawn:
            rng = np.random.default_rng([self._seed, zlib.crc32(f"{name} {side}".encode())])
            drawn = rng.standard_normal((self._side, length), np.float32)
            self._drawn[key] = drawn / np.float32(self._side**0.5)
        return self._drawn[key]


def sketch_similarity(sketches: Sequence[Doubles], start: Doubles | None = None) -> Doubles:
    """(N, N) cosines of what changed against the sketch of a start, in [-1, 1].

    Raises:
        ValueError: sketches of different modules.
    """
    rows = np.stack(sketches)
    changed = rows if start is None else rows - start
    return cosines(changed @ changed.T)
