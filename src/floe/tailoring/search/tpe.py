"""Optuna's tree-structured Parzen estimator: the one door to optuna."""

from __future__ import annotations

from collections.abc import Sequence

from floe.core.errors import Missing
from floe.tailoring.base import Trial
from floe.tailoring.genes import Levels
from floe.tailoring.search.started import Started
from floe.tailoring.space import Space

try:
    import optuna
except ImportError as error:  # pragma: no cover - the extra is not installed
    raise Missing("the search tpe needs optuna; install floe[tailor]") from error


class TpeSearch(Started):
    """Asks optuna for levels, repairs them, and tells it the repaired ones."""

    name = "tpe"

    def __init__(self, *, space: Space, seed: int, seeds: Sequence[Levels] = ()) -> None:
        """`seed` is optuna's too."""
        super().__init__(space=space, seed=seed, seeds=seeds)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._distributions = {
            f"{i:03d}": optuna.distributions.IntDistribution(0, g.top)
            for i, g in enumerate(space.genes)
        }
        self._study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )

    def _propose(self) -> Levels:
        asked = self._study.ask(self._distributions)
        drawn = [asked.params[name] for name in self._distributions]
        # What is told is the repaired plan; the asked one was never built.
        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return self.space.repair_levels(drawn)

    def tell(self, trial: Trial) -> None:
        """Learn from a trial.

        Raises:
            BadPlan: the plan is of another model.
        """
        super().tell(trial)
        levels = self.trials[-1][0]
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(zip(self._distributions, levels, strict=True)),
                distributions=self._distributions,
                value=trial.score,
            )
        )
