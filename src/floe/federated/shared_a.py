"""One A for all devices: orthonormal rows from a seed, lower ranks the first rows of higher ones.

Legend: R rank, I inputs of a linear layer.
"""

from __future__ import annotations

import numpy as np

from floe.federated.update import FloatArray


def shared_a(shape: tuple[int, int], rank: int, seed: int) -> FloatArray:
    """`rank` orthonormal rows for a layer of (outputs, inputs), the same for the same seed.

    Raises:
        ValueError: a rank below 1 or above the inputs.
    """
    n_inputs = shape[1]
    if not 1 <= rank <= n_inputs:
        raise ValueError(f"rank {rank} is not within 1 and {n_inputs}, the layer's inputs")
    drawn_IR = np.random.default_rng(seed).normal(size=(rank, n_inputs)).T
    q_IR, r_RR = np.linalg.qr(drawn_IR)
    # QR leaves the signs open; fixed ones keep rows alike whatever the library.
    return np.ascontiguousarray((q_IR * np.sign(np.diag(r_RR))).T, np.float32)
