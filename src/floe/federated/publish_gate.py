"""The gate before publishing: no member of a cluster may be worse off with the candidate.

Each device compares on its own validation examples and says one bit. What is told of a cluster are
counts alone, and nothing at all of one that is too small for counts to hide anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from floe.core.errors import BadConfig


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Whether the candidate may be published. `why` is "" when it may.

    `worse`, `not_worse`: members by their verdict; `silent`: those that gave none. All are None
    where too few answered for counts to be told.
    """

    passes: bool
    why: str = ""
    worse: int | None = None
    not_worse: int | None = None
    silent: int | None = None

    def facts(self) -> dict[str, int]:
        """The counts that may be published with the adapter; empty where they are not told."""
        if self.worse is None or self.not_worse is None:
            return {}
        return {"worse": self.worse, "not_worse": self.not_worse}


def is_worse(candidate: float, current: float, *, margin: float) -> bool:
    """A device's verdict: whether its held-out loss (nats a token) grows by more than `margin`.

    A candidate whose loss is no number is worse; one that replaces such a loss is not.

    Raises:
        BadConfig: a margin that is negative or not finite.
    """
    if not (math.isfinite(margin) and margin >= 0.0):
        raise BadConfig("the gate's margin must be finite and 0 or more", param="gate_margin")
    if not math.isfinite(candidate):
        return True
    return math.isfinite(current) and candidate > current + margin


def gate(verdicts: Mapping[str, bool | None], *, min_members: int) -> GateResult:
    """The verdict of a cluster's members together: True = worse, False = not, None = no answer.

    Nobody may be worse off, and at least `min_members` must have answered.

    Raises:
        BadConfig: `min_members` below 1.
    """
    if min_members < 1:
        raise BadConfig("min_members must be 1 or more", param="min_members")
    given = [verdict for verdict in verdicts.values() if verdict is not None]
    if len(given) < min_members:
        return GateResult(passes=False, why=f"fewer than {min_members} members judged it")
    worse = sum(given)
    return GateResult(
        passes=worse == 0,
        why=f"{worse} of {len(given)} members are worse off with it" if worse else "",
        worse=worse,
        not_worse=len(given) - worse,
        silent=len(verdicts) - len(given),
    )
