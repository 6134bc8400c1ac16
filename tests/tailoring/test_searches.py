"""One list of promises for every search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tailoring_worlds import World

from floe.core.errors import BadPlan
from floe.tailoring.base import Search
from floe.tailoring.genes import Choices
from floe.tailoring.on_torch.lstm import LstmSettings, PlanModel
from floe.tailoring.plan import Plan
from floe.tailoring.rules import Rules
from floe.tailoring.run import run_search
from floe.tailoring.search.allocate import by_depth, by_threshold
from floe.tailoring.search.evolutionary import EvolutionarySearch
from floe.tailoring.search.generative import GenerativeSearch
from floe.tailoring.search.make import SEARCHES, make_search
from floe.tailoring.search.seeds import heuristic_seeds
from floe.tailoring.shapes import check_plan

N = 12
CHOICES = Choices(
    ffn_step=32, importances=("taylor", "flap"), quants={"ffn": ("Q4_0", "Q8_0")},
    fixed_quants={"attention": "Q8_0"},
)  # fmt: skip


def made(name: str, world: World, *, seed: int = 3, with_seeds: bool = True) -> Search:
    measured = {"flap": world.importances(), "block-influence": world.importances()}
    seeds = heuristic_seeds(world.space, measured) if with_seeds else ()
    if name == "generative":  # trained less than make_search has it

        def model(n_ids: int, model_seed: int) -> PlanModel:
            settings = LstmSettings(batch=8, permutations=4, beam=2)
            return PlanModel(n_ids=n_ids, seed=model_seed, settings=settings)

        return GenerativeSearch(
            space=world.space, seed=seed, model=model, n_random=4, steps=(6, 2), seeds=seeds
        )
    return make_search(
        name, space=world.space, seed=seed, seeds=seeds, importances=measured["flap"]
    )


def ran(name: str, world: World, **options: object) -> list[Plan]:
    search = made(name, world, **options)  # type: ignore[arg-type]
    plans = []
    for _ in range(N):
        plans.append(search.ask())
        search.tell(world.trial(plans[-1]))
    return plans


@pytest.mark.parametrize("name", SEARCHES)
def test_every_plan_asked_is_legal_and_inside_the_budgets(name: str, one_thread: None) -> None:
    world = World(choices=CHOICES)
    for plan in ran(name, world):
        check_plan(plan, world.shape, rules=Rules())
        cost = world.costs.cost(plan)
        assert cost.decode_ms <= world.space.budgets.decode_ms
        assert plan.made_by == name
        assert plan.quants["attention"] == "Q8_0"


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_asks_for_the_same_plans(name: str, one_thread: None) -> None:
    assert ran(name, World()) == ran(name, World())


@pytest.mark.parametrize("name", ["generative", "evolutionary", "tpe", "random"])
def test_another_seed_asks_for_other_plans_and_none_twice(name: str, one_thread: None) -> None:
    one, other = ran(name, World(), seed=1), ran(name, World(), seed=2)
    assert one != other
    layers = [p.layers for p in one]
    assert len(set(layers)) == N


@pytest.mark.parametrize("name", SEARCHES)
def test_trials_from_elsewhere_are_welcome_and_learned_from(name: str, one_thread: None) -> None:
    world = World()
    search = made(name, world, with_seeds=False)
    foreign = [world.space.plan(world.space.random(np.random.default_rng(n))) for n in range(5)]
    for plan in foreign:
        search.tell(world.trial(plan))
    asked = search.ask()
    search.tell(world.trial(asked))
    if name not in ("uniform", "flap"):
        assert asked.layers not in [p.layers for p in foreign]
    assert world.space.keeps_budgets(search.ask())


@pytest.mark.parametrize("name", SEARCHES)
def test_a_trial_of_another_model_is_refused(name: str) -> None:
    world, other = World(), World(n_layers=5)
    plan = other.space.plan(other.space.uniform())
    with pytest.raises(BadPlan, match="made for another model"):
        made(name, world, with_seeds=False).tell(other.trial(plan))


@pytest.mark.parametrize("name", SEARCHES)
def test_equal_counts_of_evaluations_with_seeds_among_them(name: str, one_thread: None) -> None:
    world = World()
    found = run_search(made(name, world), space=world.space, quality=world, n_evaluations=N)
    assert len(world.judged) == len(found.trials) == N
    assert found.budget_violations == 0
    assert found.best.score == max(t.score for t in found.trials)
    assert list(found.curve) == sorted(found.curve, reverse=True)
    assert found.curve[-1] == found.best.perplexity


def test_seeds_come_first() -> None:
    world = World()
    seeds = heuristic_seeds(world.space, {"flap": world.importances()})
    plans = ran("evolutionary", world)
    assert {world.space.levels(p) for p in plans[:4]} >= set(seeds)


@pytest.mark.parametrize("name", ["evolutionary", "tpe"])
def test_searches_come_near_the_best_of_all_plans(name: str, one_thread: None) -> None:
    world = World(
        n_layers=4, n_ffn=96, ratio=0.7, rules=Rules(guard_first=1, guard_last=1),
        choices=Choices(ffn_step=32),
    )  # fmt: skip
    space = world.space
    every = itertools.product(*(range(g.top + 1) for g in space.genes))
    judged = sorted(world.perplexity(space.plan(n)) for n in every if space.fits(n))
    search = made(name, world, with_seeds=False)
    found = run_search(search, space=space, quality=world, n_evaluations=30)
    assert len(judged) > 60
    assert found.best.perplexity <= judged[3]


def test_evolution_beats_random_search_at_equal_evaluations() -> None:
    wins = 0
    for seed in range(5):
        world = World(seed=seed, n_layers=12)
        best = {
            name: run_search(
                made(name, world, seed=seed, with_seeds=False), space=world.space, quality=world,
                n_evaluations=40,
            ).best.score
            for name in ("evolutionary", "random")
        }  # fmt: skip
        wins += best["evolutionary"] > best["random"]
    assert wins >= 4


def test_seeds_try_bits_first_and_then_take_the_best() -> None:
    world = World(choices=CHOICES, ratio=0.5)
    measured = {"flap": world.importances(), "block-influence": world.importances()}
    seeds = heuristic_seeds(world.space, measured)
    search = made("random", world)
    asked = []
    for _ in seeds:
        asked.append(search.ask())
        search.tell(world.trial(asked[-1]))
    assert {p.quants["ffn"] for p in asked[:2]} == {"Q4_0", "Q8_0"}
    best = min(asked[:2], key=world.perplexity)
    assert asked[2].quants == best.quants
    assert all(p.importance == "flap" for p in asked)


def test_screening_helps_where_halves_add_up() -> None:
    best = {True: 0.0, False: 0.0}
    for seed in range(4):
        world = World(seed=seed, n_layers=20, ratio=0.55)
        for screened in best:
            search = EvolutionarySearch(space=world.space, seed=seed, screened=screened)
            found = run_search(search, space=world.space, quality=world, n_evaluations=30)
            best[screened] += float(np.log(found.best.perplexity))
    assert best[True] < best[False]


def test_uniform_tries_each_criterion_and_type() -> None:
    world = World(choices=CHOICES)
    plans = ran("uniform", world, with_seeds=False)
    assert len({(p.importance, p.quants["ffn"]) for p in plans}) == 4


def test_flap_gives_more_to_what_stands_out() -> None:
    world = World()
    measured = world.importances()
    levels = by_threshold(world.space, measured, standardized=True)
    raw = by_threshold(world.space, measured, standardized=False)
    kept = [p.n_ffn for p in world.space.plan(raw).layers]
    ffn = [one.ffn for one in measured]
    middle = range(1, 7)
    best, worst = max(middle, key=lambda n: ffn[n]), min(middle, key=lambda n: ffn[n])
    assert kept[best] > kept[worst]
    assert world.space.fits(levels)
    assert world.space.fits(raw)


def test_raw_thresholds_keep_as_much_importance_as_any_plan() -> None:
    """The knapsack by density: no plan of the same size keeps clearly more of the sum."""
    world = World(n_layers=4, n_ffn=96, ratio=0.7)
    measured, space = world.importances(), world.space

    def kept(levels: tuple[int, ...]) -> float:
        total = 0.0
        for part, one in list(zip(space.plan(levels).layers, measured, strict=True))[1:3]:
            groups = np.argsort(-one.kv_K)[: part.n_kv_heads]
            total += np.sort(one.q_KG[groups], axis=1)[:, ::-1][:, : part.q_per_kv].sum()
            total += np.sort(one.ffn_F)[::-1][: part.n_ffn].sum()
        return float(total)

    every = itertools.product(*(range(g.top + 1) for g in space.genes))
    best = max(kept(n) for n in every if space.fits(n))
    assert kept(by_threshold(space, measured, standardized=False)) >= 0.9 * best


def test_depth_drops_whole_layers_the_least_influential_first() -> None:
    world = World()
    measured = world.importances()
    plan = world.space.plan(by_depth(world.space, measured))
    dropped = [n for n, p in enumerate(plan.layers) if p.dropped]
    order = sorted(range(1, 7), key=lambda n: measured[n].block)
    assert set(dropped) == set(order[: len(dropped)])
    assert all(p.dropped or p.n_ffn == world.shape.n_ffn for p in plan.layers)
    filled = world.space.plan(by_depth(world.space, measured, fill=True))
    assert world.costs.cost(filled).decode_ms >= world.costs.cost(plan).decode_ms


def test_unknown_names_and_missing_importances_are_refused() -> None:
    world = World()
    with pytest.raises(BadPlan, match="no search named 'evolutionry'; did you mean evolutionary"):
        make_search("evolutionry", space=world.space)
    with pytest.raises(BadPlan, match="allocates by importances"):
        make_search("flap", space=world.space)


def test_a_run_needs_an_evaluation() -> None:
    world = World()
    with pytest.raises(ValueError, match="at least one evaluation, not 0"):
        run_search(made("random", world), space=world.space, quality=world, n_evaluations=0)
