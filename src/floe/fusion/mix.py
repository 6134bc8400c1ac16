"""f = w q + (1 - w) p on the SLM's vocabulary. V = the SLM's real ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Probs = NDArray[np.float64]


def mix(log_q_V: FloatArray, p_V: Probs, weight: float) -> NDArray[np.floating]:
    """Log-probabilities of the mix; the very array `log_q_V` at weight 1.

    `log_q_V` are the SLM's log-probabilities, `p_V` the cloud's probabilities; -inf comes out
    only where both give nothing. In float64, so that no token of the SLM's underflows.

    Raises:
        ValueError: weight outside [0, 1], or two vocabularies.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight must be between 0 and 1, not {weight}")
    if log_q_V.shape != p_V.shape:
        raise ValueError(f"the shapes differ: {log_q_V.shape} and {p_V.shape}")
    if weight == 1.0:
        return log_q_V
    f_V = np.exp(log_q_V, dtype=np.float64)
    f_V *= weight
    f_V += (1.0 - weight) * p_V
    with np.errstate(divide="ignore"):  # log(0) = -inf is meant
        return np.log(f_V, out=f_V)
