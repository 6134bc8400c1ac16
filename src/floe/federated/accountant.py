"""How much privacy releases cost: epsilon by privacy loss distributions; the only door to
dp-accounting.

An epsilon holds for one delta, one adjacency (which data sets count as neighbours) and one unit
(an example or a client). `add_remove`: one member more or less, which moves the sum by at most the
clip norm; for "shuffled" and "all" the member leaves a blank in its place. `replace_one`: one
member is another, which moves it by at most twice the clip norm.

"poisson" is exact up to the grid's rounding, which is upwards (within 1 % from rates of 1e-4).
"fixed" uses the dominating pair of subset sampling (Zhu, Dong, Wang, "Optimal Accounting of
Differential Privacy via Characteristic Function", Theorem 11; sensitivity 2), under both
adjacencies. "shuffled" claims nothing for chance.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig, Missing
from floe.federated.sampling import Adjacency, Mechanism, Sampling, positive

_GRIDS = ((1e-3, 0.5), (1e-4, 0.01), (1e-5, 0.0))
"""Grid of the losses, and the epsilon from which it is fine enough for few steps."""
_ROUNDING = 0.004  # share of epsilon that rounding up in each of many steps may add
_MOST_POINTS = 3e5  # of a grid; beyond it a coarser one is used, or epsilon is infinite
_MOST_LOSS = 2000.0  # mean loss of all steps; an epsilon above it is infinite
_TAIL = 40.0  # epsilons beyond which the subset curve is cut; the rest counts as infinite loss
_MAX_NOISE, _MIN_NOISE = 1e4, 0.2
_CLOSE = 0.998  # of a target, where a search for noise ends
MAX_ROUNDS = 1_000_000
"""More are not looked for."""


def epsilon(
    mechanisms: Mechanism | Sequence[Mechanism],
    *,
    delta: float,
    adjacency: Adjacency = "add_remove",
) -> float:
    """The epsilon of all mechanisms together; 0 for none, infinity where it is off the grid.

    Raises:
        BadConfig: delta outside (0, 1), an unknown adjacency, units that do not match.
        Missing: dp-accounting is not installed.
    """
    _check(delta, adjacency)
    listed = (mechanisms,) if isinstance(mechanisms, Mechanism) else tuple(mechanisms)
    units = {m.unit for m in listed}
    if len(units) > 1:
        raise BadConfig(
            "examples and clients are hidden by different promises: their epsilons are not added "
            "up. Account for each unit alone",
            param="unit",
        )
    counts = _counted(listed)
    if not counts:
        return 0.0
    gaussian = _gaussian_only(counts, adjacency)
    if gaussian is not None:
        return gaussian_epsilon(gaussian, delta=delta)
    total = sum(steps * _mean_loss(rate, noise) for (_, rate, noise), steps in counts.items())
    widest = max(_reach(rate, noise) for _, rate, noise in counts)
    usable = [(grid, enough) for grid, enough in _GRIDS if widest / grid <= _MOST_POINTS]
    if total > _MOST_LOSS or not usable:
        return math.inf
    found = 0.0
    for grid, enough in [g for g in usable if _is_fine(counts, g[0])] or usable[-1:]:
        found = _composed(tuple(sorted(counts.items())), delta, adjacency, grid)
        if found >= enough:
            break
    return found


def noise_for(
    target_epsilon: float,
    *,
    sampling: Sampling,
    steps: int,
    delta: float,
    adjacency: Adjacency = "add_remove",
    spent: Sequence[Mechanism] = (),
) -> float:
    """The least noise multiplier, to about 0.2 % upwards, whose steps fit in what `spent` leaves.

    Raises:
        BadConfig: no noise fits, or a value is out of range. Missing: as `epsilon`.
    """
    positive(target_epsilon, what="target epsilon", param="target_epsilon")
    unit = spent[0].unit if spent else "example"

    def cost(noise: float) -> float:
        asked = Mechanism(noise_multiplier=noise, sampling=sampling, steps=steps, unit=unit)
        return epsilon([*spent, asked], delta=delta, adjacency=adjacency)

    high, at_high = 1.0, cost(1.0)
    while at_high > target_epsilon:
        high *= 2
        if high > _MAX_NOISE:
            raise BadConfig(
                f"no noise keeps {steps} steps within epsilon {target_epsilon:g}; "
                "ask for fewer steps, a lower rate or more epsilon",
                param="target_epsilon",
            )
        at_high = cost(high)
    low, at_low = high / 2, cost(high / 2)
    while at_low <= target_epsilon and low > _MIN_NOISE:
        low, high, at_high = low / 2, low, at_low
        at_low = cost(low)
    if at_low <= target_epsilon:
        return low  # with less, nothing is hidden anyway
    while high / low > 1.001 and at_high < target_epsilon * _CLOSE:
        middle = _between(low, high, at_low, at_high, target_epsilon)
        at_middle = cost(middle)
        if at_middle <= target_epsilon:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return high


def _between(low: float, high: float, at_low: float, at_high: float, target: float) -> float:
    """Where a power law through both ends meets a little less than the target."""
    share = 0.5
    if math.isfinite(at_low) and 0 < at_high < at_low:
        share = math.log(at_low / (target * (1 + _CLOSE) / 2)) / math.log(at_low / at_high)
    return float(low * (high / low) ** min(max(share, 0.1), 0.9))


def rounds_within(
    target_epsilon: float,
    one_round: Mechanism,
    *,
    delta: float,
    adjacency: Adjacency = "add_remove",
    spent: Sequence[Mechanism] = (),
) -> int:
    """How many more rounds like `one_round` fit, up to `MAX_ROUNDS`; 0 where not even one does.

    Raises:
        BadConfig: a value is out of range. Missing: as `epsilon`.
    """
    positive(target_epsilon, what="target epsilon", param="target_epsilon")

    def fits(rounds: int) -> bool:
        asked = [*spent, *_repeated(one_round, rounds)]
        return epsilon(asked, delta=delta, adjacency=adjacency) <= target_epsilon

    low, high = 0, 1
    while low < MAX_ROUNDS and fits(high):
        low, high = high, min(high * 2, MAX_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _repeated(one: Mechanism, rounds: int) -> list[Mechanism]:
    if one.sampling.kind == "shuffled":  # each round begins a pass of its own
        passes = one.sampling.passes(one.steps) * rounds
        return [replace(one, sampling=Sampling(kind="all"), steps=passes)]
    return [replace(one, steps=one.steps * rounds)]


def _check(delta: float, adjacency: str) -> None:
    if isinstance(delta, bool) or not (math.isfinite(delta) and 0 < delta < 1):
        raise BadConfig(f"delta is {delta}; it must be above 0 and below 1", param="delta")
    if adjacency not in get_args(Adjacency):
        raise BadConfig(
            f'the adjacency is {adjacency!r}; use "add_remove" or "replace_one"', param="adjacency"
        )


_Key = tuple[str, float, float]  # how it is counted, rate, noise


def _counted(mechanisms: Iterable[Mechanism]) -> Counter[_Key]:
    counts: Counter[_Key] = Counter()
    for m in mechanisms:
        kind: str = m.sampling.kind
        rate, steps = m.sampling.rate, m.steps
        if kind == "shuffled":
            steps = m.sampling.passes(steps)
        if kind in ("shuffled", "all") or rate == 1:
            # "fixed" at rate 1 draws everybody, but its add/remove neighbours swap one for one
            kind, rate = ("everybody" if kind == "fixed" else "all"), 1.0
        counts[(kind, rate, m.noise_multiplier)] += steps
    return counts


def _gaussian_only(counts: Counter[_Key], adjacency: Adjacency) -> float | None:
    """The noise of the one Gaussian that all releases are together; None where some are drawn."""
    precision = 0.0
    for (kind, _, noise), steps in counts.items():
        if kind not in ("all", "everybody"):
            return None
        precision += steps * (_sensitivity(kind, adjacency) / noise) ** 2
    return 1 / math.sqrt(precision)


def _log_ratio(loss: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """The loss of a release that a member is in at `rate`, from the loss of one it is in."""
    missed = math.log1p(-rate) if rate < 1 else -math.inf
    return np.asarray(np.logaddexp(missed, math.log(rate) + loss))


def _reach(rate: float, noise: float) -> float:
    """The largest loss of one release that the grid holds, about, at sensitivity 1."""
    return float(_log_ratio(np.array(1 / (2 * noise**2) + 8 / noise), rate))


def _mean_loss(rate: float, noise: float) -> float:
    """The mean loss of one drawn release at sensitivity 1: what many of them add up to, each."""
    x = np.linspace(-10 * noise, 1 + 10 * noise, 2001)
    ratio = _log_ratio((2 * x - 1) / (2 * noise**2), rate)
    density = np.exp(ratio - x**2 / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    return float(np.sum(density * ratio) * (x[1] - x[0]))


def _is_fine(counts: Counter[_Key], grid: float) -> bool:
    """Whether rounding each step's loss up to the grid adds little to the variance of them all."""
    added = whole = 0.0
    for (_, rate, noise), steps in counts.items():
        variance = rate**2 * math.expm1(min(1 / noise**2, 500.0))
        whole += steps * variance
        added += steps * min(grid**2 / 6, 0.8 * grid * math.sqrt(variance))
    return added <= 2 * _ROUNDING * whole


def _sensitivity(kind: str, adjacency: Adjacency) -> int:
    return 2 if adjacency == "replace_one" or kind == "everybody" else 1


def gaussian_epsilon(noise: float, *, delta: float) -> float:
    """epsilon of the Gaussian mechanism with sensitivity 1, analytically, to 1e-9 upwards."""

    def costs(eps: float) -> bool:
        return float(gaussian_delta(np.array(eps), noise=noise)) > delta

    low, high = 0.0, 1.0
    if not costs(low):
        return 0.0
    while costs(high):
        low, high = high, high * 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if costs(middle) else (low, middle)
    return high


@functools.lru_cache(maxsize=4096)
def _composed(
    counts: tuple[tuple[_Key, int], ...], delta: float, adjacency: Adjacency, grid: float
) -> float:
    total: Any = None
    for key, steps in counts:
        one = _distribution(key, adjacency, steps, grid)
        total = one if total is None else total.compose(one)
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _distribution(key: _Key, adjacency: Adjacency, steps: int, grid: float) -> Any:
    """The privacy loss of `steps` such releases."""
    try:
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError as error:
        raise Missing(
            "accounting for privacy needs dp-accounting: pip install 'floe[dp]'"
        ) from error
    kind, rate, noise = key
    if kind in ("all", "everybody"):
        alone = noise / math.sqrt(steps) / _sensitivity(kind, adjacency)
        return pld.from_gaussian_mechanism(alone, value_discretization_interval=grid)
    if kind == "fixed":
        return _subset(noise, rate, grid).self_compose(steps)
    relation = (
        NeighboringRelation.REPLACE_ONE
        if adjacency == "replace_one"
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return pld.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        neighboring_relation=relation,
        value_discretization_interval=grid,
    ).self_compose(steps)


@functools.lru_cache(maxsize=8)
def _subset(noise: float, rate: float, grid: float) -> Any:
    """One release of a subset of fixed size: its curve, dotted at the grid's points."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    reach = min(_TAIL, 2 / noise**2 + 20 / noise + grid)  # 10 deviations of the loss
    points = np.arange(-math.ceil(reach / grid), math.ceil(reach / grid) + 1)
    eps = points * grid
    above = subset_delta(np.abs(eps), noise=noise, rate=rate)
    deltas = np.where(eps >= 0, above, -np.expm1(eps) + np.exp(eps) * above)
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(
            grid, points, np.minimum.accumulate(np.clip(deltas, 0, 1))
        )
    )


def subset_delta(eps: NDArray[np.float64], *, noise: float, rate: float) -> NDArray[np.float64]:
    """delta at each eps >= 0 of one noised sum over a subset of fixed size, one member replaced.

    rate * delta_Gauss(log(1 + (e^eps - 1) / rate)), the Gaussian at sensitivity 2.
    """
    return rate * gaussian_delta(np.log1p(np.expm1(eps) / rate), noise=noise / 2)


def gaussian_delta(eps: NDArray[np.float64], *, noise: float) -> NDArray[np.float64]:
    """delta of the Gaussian mechanism with sensitivity 1 (Balle and Wang 2018, Theorem 8)."""
    half, slope = 1 / (2 * noise), eps * noise
    return np.maximum(_below(half - slope) - np.exp(eps + _log_below(-half - slope)), 0)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _below(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard normal's distribution function."""
    return np.asarray(0.5 * _erfc(-x / math.sqrt(2)))


def _log_below(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Its logarithm; beyond -36 by the tail's leading terms, where erfc is 0."""
    safe = np.maximum(x, -36.0)
    far = -0.5 * x**2 - np.log(np.maximum(-x, 1.0) * math.sqrt(2 * math.pi))
    return np.where(x < -36.0, far, np.log(_below(safe)))
