"""How much of everything a request gets when energy or time is short: a pure choice.

Options are ways to answer one request: adapters, the share of places where the cloud is asked, a
smaller rank, a pruned model. Each has a rank in quality and what it costs, measured or modelled;
what costs nothing known cannot be promised to fit a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floe.power.base import Label


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to answer. `quality` orders options, higher is better; costs are for each token.

    `rank` None = as trained. `is_pruned`: a pruned model's manifest may offer it; Floe has none
    yet, so nothing makes such an option today.
    """

    name: str
    quality: float
    latency_ms: float | None
    energy_j: float | None
    label: Label = "unknown"
    adapters: int = 1
    cloud_share: float = 1.0
    rank: int | None = None
    is_pruned: bool = False


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What a token may take: milliseconds, joules, watts on average; None = whatever it takes."""

    latency_ms: float | None = None
    energy_j: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The option taken, whether it meets every limit, and the curve of latency against energy."""

    option: Option
    is_feasible: bool
    pareto: tuple[Option, ...]


def choose(options: Sequence[Option], shortage: Shortage) -> Choice:
    """The best option that meets the limits; where none does, the one that misses them least.

    Of equal quality the cheaper is better: in energy, then in time, then the earlier one. Without
    any limit that is the best quality there is.
    """
    if not options:
        raise ValueError("there is nothing to choose from")
    fitting = [o for o in options if excess(o, shortage) <= 1.0]
    pareto = tuple(frontier(options))
    if fitting:
        return Choice(option=min(fitting, key=_preference), is_feasible=True, pareto=pareto)
    nearest = min(options, key=lambda o: (excess(o, shortage), _preference(o)))
    return Choice(option=nearest, is_feasible=False, pareto=pareto)


def excess(option: Option, shortage: Shortage) -> float:
    """The largest share of a limit that the option uses; above 1 misses it, unknown is endless."""
    pairs = (
        (option.latency_ms, shortage.latency_ms),
        (option.energy_j, shortage.energy_j),
        (_watts(option), shortage.power_w),
    )
    used = [
        float("inf") if cost is None else cost / most for cost, most in pairs if most is not None
    ]
    return max(used, default=0.0)


def frontier(options: Sequence[Option]) -> list[Option]:
    """Options with known costs that no other beats in both time and energy, fastest first."""
    known = [
        (o.latency_ms, o.energy_j, o)
        for o in options
        if o.latency_ms is not None and o.energy_j is not None
    ]
    kept: list[Option] = []
    least_j = float("inf")
    for _, energy_j, option in sorted(known, key=lambda k: (k[0], k[1], -k[2].quality)):
        if energy_j < least_j:
            kept.append(option)
            least_j = energy_j
    return kept


def _preference(option: Option) -> tuple[float, float, float]:
    endless = float("inf")
    energy = endless if option.energy_j is None else option.energy_j
    latency = endless if option.latency_ms is None else option.latency_ms
    return (-option.quality, energy, latency)


def _watts(option: Option) -> float | None:
    if option.energy_j is None or not option.latency_ms:
        return None
    return 1000 * option.energy_j / option.latency_ms
