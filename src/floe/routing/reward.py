"""What an answer was worth, in one unit: nats per token of the answer.

A utility of -1.2 means: the LLM gave the answer's tokens a probability of exp(-1.2) each, on
average. Everything else is expressed in that unit:

- agreement: as it is, at least WORST; it counts fully from FULL_TOKENS tokens on.
- time to the first token, without what the adapter's load took: less `miss_cost_per_s` nats for
  each second, up to LONGEST_S. It counts only beside an agreement: alone it would teach that the
  base, which is always a little faster, is always better.
- thumbs: THUMB nats better (or worse) than answers to such prompts are.
- a task metric m between 0 and 1: METRIC * (2 m - 1) nats better than such answers are.

The price of paging is in the same unit, `miss_cost_per_s` times the seconds a load takes; it is
known, so it is subtracted from an arm's index and never learned.
"""

from __future__ import annotations

import math

from floe.core.outcome import Outcome

WORST = -8.0
FULL_TOKENS = 16
LONGEST_S = 2.0
THUMB = 0.5
METRIC = 0.5


def utility(outcome: Outcome, *, miss_cost_per_s: float) -> tuple[float, float] | None:
    """(utility, weight in (0, 1]) of a served request; None where nothing says how good it was.

    Values that are not finite say nothing (F03).
    """
    agreement, tokens = outcome.agreement, outcome.agreement_tokens
    if agreement is None or not math.isfinite(agreement) or tokens < 1:
        return None
    waited_s = 0.0
    if outcome.first_token_ms is not None:
        waited_s = (outcome.first_token_ms - outcome.wait_ms) / 1000
        if not math.isfinite(waited_s):
            return None
    slow = miss_cost_per_s * min(max(waited_s, 0.0), LONGEST_S)
    return max(min(agreement, 0.0), WORST) - slow, min(1.0, tokens / FULL_TOKENS)


def better_than_usual(*, thumbs: int | None, metric: float | None) -> float:
    """How many nats better than usual people or a metric say the answer was."""
    said = [THUMB * thumbs] if thumbs is not None else []
    said += [METRIC * (2 * metric - 1)] if metric is not None else []
    return sum(said) / len(said) if said else 0.0
