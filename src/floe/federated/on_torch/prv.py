"""Opacus' PRV accountant, to be compared with: another way to the same epsilons."""

from __future__ import annotations

import warnings


def prv_epsilon(
    *, noise_multiplier: float, rate: float, steps: int, delta: float, eps_error: float = 0.001
) -> float:
    """epsilon of Poisson sampled Gaussian steps under add/remove, at most `eps_error` too high."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scipy, about how finely an integral was cut
        return float(accountant.get_epsilon(delta, eps_error=eps_error))
