"""The driver of a search: ask, evaluate, write down, tell, n times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from floe.core.errors import FloeError
from floe.tailoring.base import Quality, Search, Trial
from floe.tailoring.records import Records
from floe.tailoring.score import PRINTED, Score
from floe.tailoring.space import Space


@dataclass(frozen=True, kw_only=True)
class Step:
    """Where a search is: `done` of `total` evaluations, the last trial and the best so far."""

    done: int
    total: int
    trial: Trial
    best: Trial
    is_replayed: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search came to, `trials` in the order in which they were asked for.

    `budget_violations` counts asked plans outside a budget; it must be 0.
    """

    name: str
    trials: tuple[Trial, ...]
    best: Trial
    budget_violations: int
    n_replayed: int

    @property
    def curve(self) -> tuple[float, ...]:
        """The best perplexity after each evaluation, by the score's choice of the best."""
        return best_so_far(self.trials)


OnStep = Callable[[Step], None]


def run_search(
    search: Search,
    *,
    space: Space,
    quality: Quality,
    n_evaluations: int,
    score: Score = PRINTED,
    records: Records | None = None,
    on_step: OnStep = lambda _: None,
) -> Found:
    """Evaluate `n_evaluations` plans, seeds and repetitions counted.

    With `records`, trials that are there already are not evaluated again: the search is asked as
    before and told what they came to, so that it goes on as if it had never stopped.

    Raises:
        ValueError: no evaluation is asked for. BadPlan: a plan that the quality cannot judge.
    """
    if n_evaluations < 1:
        raise ValueError(f"a search needs at least one evaluation, not {n_evaluations}")
    known = list(records.trials) if records is not None else []
    trials: list[Trial] = []
    violations = 0
    best: Trial | None = None
    for n in range(n_evaluations):
        plan = search.ask()
        is_replayed = n < len(known)
        if is_replayed:
            trial = known[n]
        else:
            cost = space.costs.cost(plan)
            perplexity = quality.perplexity(plan)
            trial = Trial(
                plan=plan,
                perplexity=perplexity,
                cost=cost,
                score=score(perplexity, cost, space.budgets),
            )
            if records is not None:
                records.append(trial)
        violations += not space.keeps_budgets(trial.plan)
        search.tell(trial)
        trials.append(trial)
        best = trial if best is None or trial.score > best.score else best
        on_step(
            Step(done=n + 1, total=n_evaluations, trial=trial, best=best, is_replayed=is_replayed)
        )
    if best is None:
        raise FloeError("a search ended without a trial")
    return Found(
        name=search.name,
        trials=tuple(trials),
        best=best,
        budget_violations=violations,
        n_replayed=min(len(known), n_evaluations),
    )


def best_so_far(trials: Sequence[Trial]) -> tuple[float, ...]:
    """The perplexity of the best trial by score after each one."""
    out: list[float] = []
    best: Trial | None = None
    for trial in trials:
        best = trial if best is None or trial.score > best.score else best
        out.append(best.perplexity)
    return tuple(out)
