"""A search by its name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from floe.core.errors import BadPlan, Missing
from floe.tailoring.base import LayerImportance, Search
from floe.tailoring.genes import Levels
from floe.tailoring.search.evolutionary import EvolutionarySearch
from floe.tailoring.search.flap import FlapSearch
from floe.tailoring.search.random import RandomSearch
from floe.tailoring.search.uniform import UniformSearch
from floe.tailoring.space import Space

SEARCHES = ("generative", "evolutionary", "tpe", "random", "uniform", "flap")


def make_search(
    name: str,
    *,
    space: Space,
    seed: int = 0,
    seeds: Sequence[Levels] = (),
    importances: Sequence[LayerImportance] | None = None,
) -> Search:
    """The search of that name. `seeds` are asked first and count as evaluations.

    "flap" needs `importances`, one a layer.

    Raises:
        BadPlan: no such search, or "flap" without importances.
        Missing: torch (generative) or optuna (tpe) is not installed.
    """
    if name == "generative":
        return _generative(space, seed, seeds)
    if name == "evolutionary":
        return EvolutionarySearch(space=space, seed=seed, seeds=seeds)
    if name == "tpe":
        from floe.tailoring.search.tpe import TpeSearch

        return TpeSearch(space=space, seed=seed, seeds=seeds)
    if name == "random":
        return RandomSearch(space=space, seed=seed, seeds=seeds)
    if name == "uniform":
        return UniformSearch(space=space, seed=seed, seeds=seeds)
    if name == "flap":
        if importances is None:
            raise BadPlan("the search flap allocates by importances; measure FLAP's first")
        return FlapSearch(space=space, seed=seed, seeds=seeds, importances=importances)
    raise _unknown(name)


def check_search(name: str) -> None:
    """Raise BadPlan where no search has that name."""
    if name not in SEARCHES:
        raise _unknown(name)


def _unknown(name: str) -> BadPlan:
    near = difflib.get_close_matches(name, SEARCHES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(SEARCHES)}"
    return BadPlan(f"no search named {name!r}; {hint}")


def _generative(space: Space, seed: int, seeds: Sequence[Levels]) -> Search:
    from floe.tailoring.search.generative import GenerativeSearch, Model

    try:
        from floe.tailoring.on_torch.lstm import PlanModel
    except ImportError as error:
        raise Missing("the search generative needs torch; install floe[tailor]") from error

    def model(n_ids: int, model_seed: int) -> Model:
        return PlanModel(n_ids=n_ids, seed=model_seed)

    return GenerativeSearch(space=space, seed=seed, model=model, seeds=seeds)
