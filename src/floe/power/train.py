"""Training of the learned controller's policy: evolution strategies over simulated boards.

The policy is one for all boards: features and choices are in multiples of what a board does at
its fastest. What is minimised is energy over the performance governor's, with missed goals beyond
its own weighed by a price that rises while they are too many (a Lagrange multiplier).

Legend: N parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from floe.power.boards.catalogue import fitted
from floe.power.boards.model import BoardModel
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.policy import Policy, blank
from floe.power.controllers.rules import rule
from floe.power.simulate import Guess, Load, Run, no_load, simulate
from floe.power.workload import Job, Part, workload

Vector = NDArray[np.float64]
HIDDEN = 12
TRAIN_BOARDS = ("orin-nano-super", "odroid-xu3", "v100")
_ALLOWED = 0.005  # missed goals beyond the performance governor's
_SIGMA, _PAIRS, _STEP = 0.06, 8, 0.1
_MISS_PRICE = 10.0  # what a share of missed goals weighs when policies are compared at the end
_GUESS_SPREAD = 0.9  # of the logarithm of the tokens left: what a predictor errs by
_OWN_SHARE = 0.6  # of that error's variance, the same for a whole answer


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A board with jobs and what goes on beside them; `base` is the performance governor's run."""

    name: str
    model: BoardModel
    jobs: tuple[Job, ...]
    load: Load
    guess: Guess
    base: Run


def scenarios(part: Part, *, seed: int, n_jobs: int, boards: Sequence[str]) -> list[Scenario]:
    """Each board in a conversation, in a queue, beside another program, and on a hot day."""
    made = []
    for k, name in enumerate(boards):
        model = fitted(name).model
        hot = replace(model, thermal=replace(model.thermal, ambient_c=55.0))
        plans = (
            ("conversation", model, False, no_load),
            ("queue", model, True, no_load),
            ("beside", model, False, bursts(seed + k)),
            ("hot", hot, False, no_load),
        )
        for what, board, queue, load in plans:
            utilisation = 0.1 if queue else 0.35
            jobs = tuple(
                workload(
                    board, n=n_jobs, part=part, seed=seed + k, queue=queue, utilisation=utilisation
                )
            )
            made.append(
                Scenario(
                    name=f"{name} {what}",
                    model=board,
                    jobs=jobs,
                    load=load,
                    guess=erring(seed + k),
                    base=simulate(board, rule("performance", board), jobs, load=load),
                )
            )
    return made


def bursts(seed: int, *, most: float = 0.4, every_s: float = 30.0) -> Load:
    """Another program that comes and goes: a share of the board for stretches of time."""
    shares = np.random.default_rng(seed).choice([0.0, 0.0, most / 2, most], size=4096)

    def load(at_s: float) -> float:
        return float(shares[int(at_s / every_s) % len(shares)])

    return load


def erring(seed: int, *, spread: float = _GUESS_SPREAD) -> Guess:
    """Tokens left with a log-normal error, the same for the same place.

    Most of the error is the answer's own, so it stays while the answer is decoded.
    """
    errors = np.random.default_rng(seed).normal(0.0, spread, size=8192)
    own, here = math.sqrt(_OWN_SHARE), math.sqrt(1 - _OWN_SHARE)

    def guess(job: Job, done: int) -> float:
        answer = (job.prompt_tokens * 131 + job.output_tokens * 7) % len(errors)
        place = (answer + done + 1) % len(errors)
        return float(
            (job.output_tokens - done) * math.exp(own * errors[answer] + here * errors[place])
        )

    return guess


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A policy over scenarios: mean energy over the performance governor's, and excess misses."""

    energy: float
    excess: float


def judge(policy: Policy, where: Sequence[Scenario]) -> Judged:
    """Run the policy everywhere."""
    energies, excesses = [], []
    for one in where:
        ran = simulate(
            one.model, Learned(one.model, policy), one.jobs, load=one.load, guess=one.guess
        )
        energies.append(ran.energy_j / one.base.energy_j)
        for own, base in (
            (ran.violation_ttft, one.base.violation_ttft),
            (ran.violation_tpot, one.base.violation_tpot),
        ):
            excesses.append(max(0.0, own - base - _ALLOWED))
    return Judged(energy=float(np.mean(energies)), excess=float(np.mean(excesses)))


def _weighed(judged: Judged) -> float:
    return judged.energy + _MISS_PRICE * judged.excess


def train(
    where: Sequence[Scenario],
    *,
    generations: int,
    seed: int,
    say: Callable[[int, Judged], None] = lambda _n, _judged: None,
) -> Policy:
    """The best policy found, by mirrored sampling and ranks (Salimans et al., arXiv 1703.03864)."""
    rng = np.random.default_rng(seed)
    shape = blank(N_FEATURES, HIDDEN, N_OUTPUTS)
    centre_N = rng.normal(0.0, 0.3, size=shape.n_parameters)
    centre_N[-N_OUTPUTS * (HIDDEN + 1) :] = 0.0  # outputs start at zero: the middle choices
    price = 4.0
    best_N, best = centre_N, judge(shape.with_flat(centre_N), where)
    for n in range(generations):
        noise_PN = rng.normal(size=(_PAIRS, len(centre_N)))
        tried = [centre_N + s * _SIGMA * e for e in noise_PN for s in (1.0, -1.0)]
        found = [judge(shape.with_flat(x), where) for x in tried]
        scores = np.array([j.energy + price * j.excess for j in found])
        ranks = np.argsort(np.argsort(scores)) / (len(scores) - 1) - 0.5
        pull_N = sum((ranks[2 * p] - ranks[2 * p + 1]) * noise_PN[p] for p in range(_PAIRS))
        centre_N = centre_N - _STEP * pull_N / np.sqrt(_PAIRS)
        now = judge(shape.with_flat(centre_N), where)
        price = float(np.clip(price * (1.15 if now.excess > 0 else 0.97), 1.0, 60.0))
        for x, judged in [*zip(tried, found, strict=True), (centre_N, now)]:
            if _weighed(judged) < _weighed(best):
                best_N, best = x, judged
        say(n, now)
    card: dict[str, object] = {
        "trained_on": [one.name for one in where],
        "generations": generations,
        "seed": seed,
        "energy": round(best.energy, 4),
        "excess_misses": round(best.excess, 5),
    }
    return replace(shape.with_flat(best_N), card=card)
