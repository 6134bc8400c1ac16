"""Controllers side by side on one board: the same jobs, load and guesses for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from floe.power.base import Controller, ControlState, Goals, Step
from floe.power.boards.model import BoardModel
from floe.power.controllers.learned import Learned
from floe.power.controllers.policy import Policy
from floe.power.controllers.rules import RULES, Fixed, fixed_best, in_time, rule
from floe.power.optimum import optimum
from floe.power.simulate import Load, Run, no_load, simulate
from floe.power.train import bursts, erring
from floe.power.workload import Job, workload

TRAIN_SEED = 900
"""Of the jobs that the best fixed setting is found on."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A kind of day: requests in a conversation or a queue, alone or beside another program."""

    name: str
    queue: bool = False
    beside: bool = False

    @property
    def utilisation(self) -> float:
        """Share of the time that the board is busy at full speed."""
        return 0.1 if self.queue else 0.35


CONVERSATION = Setup(name="conversation")
QUEUE = Setup(name="queue", queue=True)
BESIDE = Setup(name="beside", beside=True)


@dataclass(kw_only=True)
class Totals:
    """Runs of one controller added up."""

    runs: list[Run] = field(default_factory=list)

    @property
    def energy_j(self) -> float:
        """Serving alone."""
        return sum(run.energy_j for run in self.runs)

    @property
    def all_j(self) -> float:
        """With what waiting took."""
        return self.energy_j + sum(run.idle_j for run in self.runs)

    @property
    def violation_ttft(self) -> float:
        """Share of requests with a late first token."""
        return float(np.mean([s.late_first for run in self.runs for s in run.served]))

    @property
    def violation_tpot(self) -> float:
        """Share of requests whose tokens were late."""
        return float(np.mean([s.late_tokens for run in self.runs for s in run.served]))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came of it, by controller. `optimum_j` is None where the load changes: it knows none."""

    by_name: Mapping[str, Totals]
    optimum_j: float | None
    decision_us: tuple[float, ...]
    avoidable_tpot: float

    @property
    def base(self) -> Totals:
        """The performance governor's."""
        return self.by_name["performance"]

    @property
    def learned(self) -> Totals:
        """The learned controller's."""
        return self.by_name["learned"]

    def share(self, joules: float) -> float:
        """Over the performance governor's energy."""
        return joules / self.base.energy_j

    @property
    def rules_in_time(self) -> list[str]:
        """Controllers that learn nothing and meet the goals; the performance governor if none."""
        rules = [name for name in self.by_name if name not in ("learned", "dqn")]
        good = [name for name in rules if is_in_time(self.by_name[name], self.base)]
        return good or ["performance"]

    @property
    def best_rule(self) -> str:
        """The one of them that serves with the least energy."""
        return min(self.rules_in_time, key=lambda name: self.by_name[name].energy_j)

    @property
    def least_rule_j(self) -> float:
        """What the one takes that takes least with waiting counted."""
        return min(self.by_name[name].all_j for name in self.rules_in_time)


def is_in_time(own: Totals, base: Totals) -> bool:
    """Whether the goals are met: see `controllers.rules.in_time`."""
    return in_time(_as_run(own), _as_run(base))


def _as_run(totals: Totals) -> Run:
    served = tuple(s for run in totals.runs for s in run.served)
    return Run(served=served, energy_j=0.0, idle_j=0.0, switches=0, throttled=0)


def compare(
    model: BoardModel,
    policy: Policy,
    *,
    setup: Setup,
    n_jobs: int,
    seeds: Sequence[int],
    spread: float,
    extra: Mapping[str, Callable[[], Controller]] | None = None,
) -> Compared:
    """Every controller on the test jobs of each seed; each starts anew with every seed."""
    fixed = _fixed(model, setup, n_jobs)
    makers: dict[str, Callable[[], Controller]] = {
        **{name: (lambda name=name: rule(name, model)) for name in RULES},  # type: ignore[misc]
        "fixed-best": lambda: fixed,
        "learned": lambda: Learned(model, policy),
        **(extra or {}),
    }
    totals = {name: Totals() for name in makers}
    decisions: list[float] = []
    avoidable: list[bool] = []
    bound = 0.0
    for seed in seeds:
        jobs = jobs_of(model, setup, n_jobs, seed)
        load, guess = _load(setup, seed), erring(seed, spread=spread)
        for name, make in makers.items():
            watched = Watched(
                make(), model, *((decisions, avoidable) if name == "learned" else ([], []))
            )
            totals[name].runs.append(simulate(model, watched, jobs, load=load, guess=guess))
            watched.close()
        bound += optimum(model, jobs).energy_j
    return Compared(
        by_name=totals,
        optimum_j=None if setup.beside else bound,
        decision_us=tuple(decisions),
        avoidable_tpot=float(np.mean(avoidable)),
    )


def jobs_of(model: BoardModel, setup: Setup, n: int, seed: int) -> list[Job]:
    """Test jobs."""
    return workload(
        model, n=n, part="test", seed=seed, queue=setup.queue, utilisation=setup.utilisation
    )


def _load(setup: Setup, seed: int) -> Load:
    return bursts(seed) if setup.beside else no_load


def _fixed(model: BoardModel, setup: Setup, n_jobs: int) -> Fixed:
    jobs = workload(
        model, n=n_jobs, part="train", seed=TRAIN_SEED, queue=setup.queue,
        utilisation=setup.utilisation,
    )  # fmt: skip
    return fixed_best(model, jobs, load=_load(setup, TRAIN_SEED))


class Watched:
    """A controller whose decisions are timed, and whose misses are told from the load's.

    `us` gets microseconds of decisions, `avoidable` whether each request's tokens came late though
    full speed would have had them in time at the loads it met.
    """

    def __init__(
        self, controller: Controller, model: BoardModel, us: list[float], avoidable: list[bool]
    ) -> None:
        self._controller, self._model = controller, model
        self._us, self._avoidable = us, avoidable
        self.name = controller.name
        self._goals: Goals | None = None
        self._state: ControlState | None = None
        self._tokens, self._took_ms, self._fast_ms = 0, 0.0, 0.0

    def begin(self, goals: Goals) -> None:
        """A request starts; the one before is judged."""
        self.close()
        self._goals = goals
        self._tokens, self._took_ms, self._fast_ms = 0, 0.0, 0.0
        self._controller.begin(goals)

    def close(self) -> None:
        """Judge the last request."""
        if self._goals is not None:
            most_ms = self._goals.tpot_ms * self._tokens
            self._avoidable.append(self._fast_ms <= most_ms < self._took_ms)

    def decide(self, state: ControlState) -> dict[str, float]:
        """The controller's own choice."""
        self._state = state
        started = time.perf_counter_ns()
        chosen = self._controller.decide(state)
        self._us.append((time.perf_counter_ns() - started) / 1000)
        return chosen

    def seen(self, step: Step) -> None:
        """Count what the step took and would have taken."""
        if step.phase == "decode" and self._state is not None:
            context = self._state.prompt_tokens + self._state.tokens_done
            fast_ms = float(self._model.decode_ms(context)[self._model.fastest])
            self._tokens += step.tokens
            self._took_ms += step.duration_ms
            self._fast_ms += step.tokens * fast_ms / (1.0 - min(self._state.load, 0.95))
        self._controller.seen(step)


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Relative energies of the second half of the requests on a board not seen before."""

    learned: float
    optimum: float
    missed: float


def unseen(model: BoardModel, policy: Policy, *, n_jobs: int, seed: int, spread: float) -> Adapted:
    """The controller knows the published board and serves on another one, `n_jobs` to adapt."""
    other = model.perturbed(static=1.3, slower_memory=1.25)
    controller = Learned(model, policy)
    guess = erring(seed, spread=spread)
    simulate(other, controller, jobs_of(other, CONVERSATION, n_jobs, seed), guess=guess)
    jobs = jobs_of(other, CONVERSATION, n_jobs, seed + 1)
    run = simulate(other, controller, jobs, guess=guess)
    base_j = simulate(other, rule("performance", other), jobs).energy_j
    return Adapted(
        learned=run.energy_j / base_j,
        optimum=optimum(other, jobs).energy_j / base_j,
        missed=max(run.violation_ttft, run.violation_tpot),
    )
