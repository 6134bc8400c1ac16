"""Which adapters should be in memory: the slow time scale's choice, as pure functions.

A set C is worth, to a mean prompt of those seen lately,

    F(C) = mean over t of max(0, max over i of (utility[t, i] - cost[i] * [i not in C]))

where utilities are over the plain base's (which needs no memory) and `cost` is what a load costs,
in the same unit. F never falls when C grows and has diminishing returns (it is a sum of maxima of
what each adapter offers), so under a budget of bytes this is a submodular knapsack:

- with few adapters every set is looked at, and the best one is found;
- with more, the better one of two greedy runs is taken (by gain, and by gain per byte, where
  gains are only worked out again while they could still be the largest) and the best single
  adapter. By gain alone with equal sizes that is at least 1 - 1/e of the best; with unequal sizes
  the better of per-byte and single is at least (1 - 1/e) / 2 of it, counted from F of nothing.

Changing costs too: each adapter that is not there yet is charged `load_cost[i] / horizon`, and the
old set stays unless the new one is better by `hysteresis`.

Legend: T prompts, K adapters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
EXACT_UP_TO = 14


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Utilities (T, K) over the base's; costs of a load, bytes; what is there now (indices).

    `horizon` is how many requests the choice will hold for.
    """

    utilities: FloatArray
    costs: FloatArray
    n_bytes: tuple[int, ...]
    budget_bytes: int
    current: frozenset[int] = frozenset()
    horizon: float = float("inf")
    hysteresis: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The set, F of it, and its value after what the change costs."""

    members: frozenset[int]
    value: float
    net: float
    is_exact: bool


def set_value(problem: Problem, members: Iterable[int]) -> float:
    """F of a set."""
    if not len(problem.utilities):
        return 0.0
    offered_TK = problem.utilities - problem.costs
    inside = list(members)
    offered_TK[:, inside] = problem.utilities[:, inside]
    return float(np.maximum(offered_TK.max(axis=1, initial=0.0), 0.0).mean())


def change_cost(problem: Problem, members: Iterable[int]) -> float:
    """What loading the members that are not there costs each request of the horizon."""
    return float(sum(problem.costs[i] for i in set(members) - problem.current)) / problem.horizon


def choose_set(problem: Problem, *, exact_up_to: int = EXACT_UP_TO) -> Choice:
    """The set to have in memory: exact for few adapters, else greedy with its guarantee.

    Adapters that do not fit the budget at all are never chosen. The present set, if it fits,
    stays unless another is better by `hysteresis` after the cost of changing.
    """
    fitting = [i for i, size in enumerate(problem.n_bytes) if size <= problem.budget_bytes]
    # What is never better than the base even for free cannot add anything.
    useful = [i for i in fitting if len(problem.utilities) and problem.utilities[:, i].max() > 0]
    exact = len(useful) <= exact_up_to
    found = _exact(problem, useful) if exact else _greedy_best(problem, useful)
    best = _choice(problem, found, exact)
    if sum(problem.n_bytes[i] for i in problem.current) <= problem.budget_bytes:
        stay = _choice(problem, problem.current, exact)
        if best.net <= stay.net + problem.hysteresis:
            return stay
    return best


def _choice(problem: Problem, members: Iterable[int], exact: bool) -> Choice:
    chosen = frozenset(members)
    value = set_value(problem, chosen)
    net = value - change_cost(problem, chosen)
    return Choice(members=chosen, value=value, net=net, is_exact=exact)


def _exact(problem: Problem, useful: Sequence[int]) -> frozenset[int]:
    """Every set that fits, member by member, the maxima carried along."""
    utilities, costs, sizes = problem.utilities, problem.costs, problem.n_bytes
    best: tuple[float, frozenset[int]] = (float("-inf"), frozenset())

    def visit(at: int, offered_T: FloatArray, free: int, loads: float, members: list[int]) -> None:
        nonlocal best
        if at == len(useful):
            net = float(offered_T.mean()) - loads
            if net > best[0] + 1e-15:
                best = (net, frozenset(members))
            return
        i = useful[at]
        visit(at + 1, offered_T, free, loads, members)
        if sizes[i] <= free:
            price = 0.0 if i in problem.current else float(costs[i]) / problem.horizon
            with_T = np.maximum(offered_T, utilities[:, i])
            visit(at + 1, with_T, free - sizes[i], loads + price, [*members, i])

    if not len(utilities):
        return frozenset()
    paid_T = np.maximum((utilities - costs).max(axis=1, initial=0.0), 0.0)
    visit(0, paid_T, problem.budget_bytes, 0.0, [])
    return best[1]


def _greedy_best(problem: Problem, useful: Sequence[int]) -> frozenset[int]:
    """The best of: greedy by gain, greedy by gain per byte, the best single one, none."""
    singles = [frozenset({i}) for i in useful]
    candidates = [
        frozenset(),
        _greedy(problem, useful, per_byte=False),
        _greedy(problem, useful, per_byte=True),
        max(singles, key=lambda s: _net(problem, s)),
    ]
    return max(candidates, key=lambda s: _net(problem, s))


def _net(problem: Problem, members: frozenset[int]) -> float:
    return set_value(problem, members) - change_cost(problem, members)


def _greedy(problem: Problem, useful: Sequence[int], *, per_byte: bool) -> frozenset[int]:
    """Lazy greedy: a gain only falls while the set grows, so an old one is an upper bound."""
    utilities, costs, sizes = problem.utilities, problem.costs, problem.n_bytes
    offered_T = np.maximum((utilities - costs).max(axis=1, initial=0.0), 0.0)

    def worth(i: int) -> float:
        gain = float(np.maximum(utilities[:, i] - offered_T, 0.0).mean())
        if i not in problem.current:
            gain -= float(costs[i]) / problem.horizon
        return gain / sizes[i] if per_byte else gain

    heap = [(-worth(i), i, 0) for i in useful]
    heapq.heapify(heap)
    members: set[int] = set()
    free = problem.budget_bytes
    while heap:
        bound, i, seen = heapq.heappop(heap)
        if bound >= 0:
            break
        if sizes[i] > free:
            continue
        if seen != len(members):
            heapq.heappush(heap, (-worth(i), i, len(members)))
            continue
        members.add(i)
        free -= sizes[i]
        offered_T = np.maximum(offered_T, utilities[:, i])
    return frozenset(members)
