"""How much an update counts: its examples, and how old the adapter is that it began with."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from floe.core.errors import BadConfig, BadRound
from floe.federated.update import Update

STALENESS = ("constant", "polynomial", "hinge")


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """What an update loses for each round it is late, as FedAsync names it.

    `polynomial`: (1 + age) ** -power. `hinge`: 1 up to `grace` rounds, then
    1 / (power * (age - grace) + 1). `constant`: 1.

    Raises:
        BadConfig: no such kind, or a number that is no weight.
    """

    kind: str = "constant"
    power: float = 0.5
    grace: int = 2

    def __post_init__(self) -> None:
        if self.kind not in STALENESS:
            near = difflib.get_close_matches(self.kind, STALENESS, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(STALENESS)}"
            raise BadConfig(f"no staleness weight named {self.kind!r}; {hint}", param="staleness")
        if not (math.isfinite(self.power) and self.power >= 0.0 and self.grace >= 0):
            raise BadConfig("power and grace of staleness must be 0 or more", param="staleness")

    def weight(self, age_rounds: int) -> float:
        """The share that is left of an update `age_rounds` late, in (0, 1]."""
        age = max(0, age_rounds)
        if self.kind == "polynomial":
            return float((1.0 + age) ** -self.power)
        if self.kind == "hinge" and age > self.grace:
            return 1.0 / (self.power * (age - self.grace) + 1.0)
        return 1.0


def round_weights(
    updates: Sequence[Update],
    *,
    round_number: int,
    staleness: Staleness | None = None,
    at_most_examples: int | None = None,
) -> list[float]:
    """The share of each update in a round's mean; they sum to 1.

    A device says itself how many examples it has: `at_most_examples` bounds what that can do.

    Raises:
        BadRound: the shares have no total, such as when every count is zero.
    """
    rule = staleness or Staleness()
    raw = []
    for update in updates:
        n = max(0, update.n_examples)
        n = n if at_most_examples is None else min(n, at_most_examples)
        raw.append(n * rule.weight(round_number - update.round_number))
    total = math.fsum(raw)
    if not (math.isfinite(total) and total > 0.0):
        raise BadRound(
            f"round {round_number}: {len(updates)} updates weigh {total:g} together, so there is "
            "no mean; the last good adapter stays"
        )
    return [value / total for value in raw]


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """The mean of finite values with weights above 0; None where there is no data."""
    pairs = [
        (v, w)
        for v, w in zip(values, weights, strict=True)
        if math.isfinite(v) and math.isfinite(w) and w > 0.0
    ]
    total = math.fsum(w for _, w in pairs)
    return math.fsum(v * w for v, w in pairs) / total if total > 0.0 else None
