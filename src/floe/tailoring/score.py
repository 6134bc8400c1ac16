"""CLONE's score of a plan, equation 1: one over perplexity, less where a budget is overshot.

    score = 1 / ppl * (E / e)^(alpha [e > E]) * (T / t)^(beta [t > T])

with e and t the plan's energy and time for a decoded token and E and T the budgets. The script
that was released with the paper has the indicators the other way round (a bonus inside the
budgets, no penalty outside) and exponents of 1; it is here as `RELEASED` to be compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets, Cost


@dataclass(frozen=True, kw_only=True)
class Score:
    """Equation 1; with `reversed_`, the released script's form of it. Larger is better."""

    alpha: float = 2.0
    beta: float = 2.0
    reversed_: bool = False

    def __call__(self, perplexity: float, cost: Cost, budgets: Budgets) -> float:
        """The score, at least 0; 0 for an infinite or undefined perplexity.

        Energy and decode time count; without a budget a factor is 1.

        Raises:
            BadPlan: there is an energy budget but the cost has no energy.
            ValueError: the perplexity is not above 0.
        """
        if perplexity <= 0:
            raise ValueError(f"a perplexity is above 0, not {perplexity}")
        if not math.isfinite(perplexity):
            return 0.0
        if budgets.energy_mj is not None and cost.energy_mj is None:
            raise BadPlan(
                "there is an energy budget but the device profile has no energy; "
                "profile with a meter or a board model, or leave the energy budget out"
            )
        energy = self._factor(budgets.energy_mj, cost.energy_mj, self.alpha)
        time = self._factor(budgets.decode_ms, cost.decode_ms, self.beta)
        return energy * time / perplexity

    def _factor(self, budget: float | None, used: float | None, power: float) -> float:
        if budget is None or used is None:
            return 1.0
        counts = used < budget if self.reversed_ else used > budget
        return float((budget / used) ** power) if counts else 1.0


PRINTED = Score()
RELEASED = Score(alpha=1.0, beta=1.0, reversed_=True)
SCORES = {"printed": PRINTED, "released": RELEASED}
