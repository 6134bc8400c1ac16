"""Searches and one-shot pruners compared at the same decode latency, by held-out perplexity.

Every plan of a point has at most the same decode time by the same cost model. Searches get the
same number of evaluations, seeds counted; what is compared is the perplexity of each one's best
plan on WikiText-2's test part, which no search and no importance ever sees. No recovery.

Searches that start from seeds (`search.seeds`): generative, evolutionary, tpe, and random-seeded.
Plain random starts from none. One-shot baselines take one evaluation: there is nothing to search.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from floe.core.files import atomic_write
from floe.tailoring.base import Budgets, CostModel
from floe.tailoring.genes import Choices, Levels
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.on_torch.opened import Amounts, Opened, open_quality
from floe.tailoring.plan import ModelShape, Plan
from floe.tailoring.records import Records
from floe.tailoring.run import Found, run_search
from floe.tailoring.search.allocate import by_depth, by_threshold
from floe.tailoring.search.make import make_search
from floe.tailoring.search.seeds import heuristic_seeds
from floe.tailoring.shapes import whole_plan
from floe.tailoring.space import Space
from floe.tailoring.text import read_text, sample_text

Say = Callable[[str], None]
Figures = dict[str, Any]
OURS = ("generative", "evolutionary")
SEARCHED = (*OURS, "tpe", "random")
ONE_SHOT = ("uniform", "flap", "taylor", "wanda-sp", "magnitude", "shortgpt")
_IMPORTANCE = "flap"  # what plans of searches are cut by; the one-shot baselines have their own


class MeasureLatency(Protocol):
    """Decode milliseconds of a built plan in the serving engine; None = not measured here."""

    def __call__(self, plan: Plan) -> float | None:
        """Milliseconds a token."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What is compared. `gain_point` is where the gain over random is measured, per seed."""

    points: tuple[float, ...] = (0.8, 0.65, 0.5)
    n_evaluations: int = 40
    seeds: tuple[int, ...] = (0, 1, 2)
    gain_point: float = 0.5
    searched: tuple[str, ...] = SEARCHED
    test_windows: int = 16
    test_width: int = 256


QUICK = SearchPlan(
    points=(0.85,), n_evaluations=12, seeds=(0,), gain_point=0.85, test_windows=4, test_width=64
)
FULL = SearchPlan()
QUICK_LAYERS = 6
_QUICK_AMOUNTS = Amounts(
    judged_windows=2, judged_width=64, ranked_windows=2, ranked_width=128, taylor_tokens=128
)
SAMPLE = Path(__file__).parent / "data" / "wikitext2" / "test_sample.txt"


def search_figures(
    folder: Path,
    *,
    full: bool,
    results: Path,
    costs: Callable[[ModelShape], CostModel] | None = None,
    base_digest: str = "",
    wikitext: Path | None = None,
    measure: MeasureLatency = lambda _: None,
    say: Say = lambda _: None,
) -> Figures:
    """The comparison on a model's Hugging Face folder; partial results go into `results`.

    `full` takes the whole model (SmolLM2-135M: 25 to 30 minutes of one core), else its first
    `QUICK_LAYERS` layers. `costs` makes the cost model of a shape (a device's table); without it
    costs are modelled by bytes. `wikitext` is a folder with WikiText-2's valid.txt and test.txt;
    without it the samples that come with Floe are used.

    Raises:
        NotFound: `wikitext` lacks a file. BadModel: no model that can be cut.
    """
    calibration = sample_text() if wikitext is None else read_text(wikitext / "valid.txt")
    test = read_text((wikitext / "test.txt") if wikitext is not None else SAMPLE)
    opened = open_quality(
        folder, calibration, base_digest=base_digest,
        n_layers=None if full else QUICK_LAYERS,
        amounts=Amounts() if full else _QUICK_AMOUNTS,
    )  # fmt: skip
    chosen = costs(opened.shape) if costs else ModelledCost(shape=opened.shape)
    figures = compare_searches(
        opened, chosen, plan=FULL if full else QUICK, test_text=test, folder=results,
        measure=measure, say=say,
    )  # fmt: skip
    source = "sample" if wikitext is None else "whole"
    return {**figures, "search_text": source, "search_costs": "table" if costs else "modelled"}


def compare_searches(
    opened: Opened,
    costs: CostModel,
    *,
    plan: SearchPlan,
    test_text: str,
    folder: Path,
    measure: MeasureLatency = lambda _: None,
    say: Say = lambda _: None,
) -> Figures:
    """Figures by field; what is in `folder` already (per method, point and seed) is not run again.

    Fields: `ppl_base`; for each point P (80, 65, 50) `ppl_METHOD_P` and `ppl_ratio_METHOD_P`
    (held-out, over the uncut model's), `calibration_ppl_METHOD_P`, `ppl_ratio_ours_P`,
    `ppl_ratio_best_baseline_P`, `decode_ratio_METHOD_P` (table) and, where measured,
    `decode_ratio_measured_METHOD_P`; `search_gain_seed_S` (score over random's, calibration),
    `search_gain` (the least of them), `search_gain_wins`, `search_gain_over_seeded_random`,
    `budget_violations`, `evaluations`.
    """
    runner = _Runner(opened, costs, plan, test_text, folder, measure, say)
    whole = whole_plan(opened.shape)
    figures: Figures = {
        "evaluations": plan.n_evaluations,
        "seeded_searches": "generative, evolutionary, tpe",
        "ppl_base": runner.tested("whole", whole),
    }
    violations = 0
    for point in plan.points:
        for name, seed in runner.runs(point):
            found = runner.search(name, point, seed)
            violations += found.budget_violations
            if seed == plan.seeds[0]:
                figures |= runner.row(name, point, found.best.plan, whole, figures["ppl_base"])
                figures[_field("calibration_ppl", name, point)] = found.best.perplexity
        for name in ONE_SHOT:
            made = runner.one_shot(name, point)
            figures |= runner.row(name, point, made, whole, figures["ppl_base"])
        figures |= _best(figures, point, plan.searched)
    figures |= runner.gains()
    figures["budget_violations"] = violations + runner.one_shot_violations
    return figures


class _Runner:
    """One comparison with its partial results."""

    def __init__(
        self,
        opened: Opened,
        costs: CostModel,
        plan: SearchPlan,
        test_text: str,
        folder: Path,
        measure: MeasureLatency,
        say: Say,
    ) -> None:
        self._opened, self._costs, self._plan = opened, costs, plan
        self._test_text, self._folder, self._measure, self._say = test_text, folder, measure, say
        self._whole_ms = costs.cost(whole_plan(opened.shape)).decode_ms
        self._spaces: dict[float, Space] = {}
        self._seeds: dict[float, tuple[Levels, ...]] = {}
        self._done: dict[tuple[str, float, int], Found] = {}
        self._tested = _Kept(folder / "held_out.json", self._label())
        self.one_shot_violations = 0

    def _label(self) -> dict[str, Any]:
        shape, plan = self._opened.shape, self._plan
        return {
            "base_digest": shape.base_digest, "n_layers": shape.n_layers,
            "whole_ms": self._whole_ms, "test_windows": plan.test_windows,
            "test_width": plan.test_width, "calibration_loss": self._opened.statistics.loss,
        }  # fmt: skip

    def runs(self, point: float) -> Iterator[tuple[str, int]]:
        """Searches with the first seed everywhere, ours and random with all at one point."""
        first, *others = self._plan.seeds
        for name in self._plan.searched:
            yield name, first
        if point == self._plan.gain_point:
            again = [n for n in self._plan.searched if n in (*OURS, "random")]
            yield from ((n, s) for s in others for n in again)
            yield "random-seeded", first

    def space(self, point: float, importance: str = _IMPORTANCE) -> Space:
        """Plans of at most `point` of the uncut model's decode time."""
        return Space(
            shape=self._opened.shape,
            cost=self._costs,
            budgets=Budgets(decode_ms=self._whole_ms * point),
            choices=Choices(importances=(importance,)),
        )

    def search(self, name: str, point: float, seed: int) -> Found:
        """Run or resume one search."""
        space = self._spaces.setdefault(point, self.space(point))
        if point not in self._seeds:
            self._seeds[point] = heuristic_seeds(space, self._opened.quality.importances)
        seeds = () if name == "random" else self._seeds[point]
        label = {**self._label(), "search": name, "seed": seed, "point": point}
        path = self._folder / f"{name}_{_percent(point)}_{seed}.jsonl"
        kind = "random" if name == "random-seeded" else name
        with Records(path, label=label) as records:
            found = run_search(
                make_search(kind, space=space, seed=seed, seeds=seeds),
                space=space,
                quality=self._opened.quality,
                n_evaluations=self._plan.n_evaluations,
                records=records,
            )
        self._say(
            f"{name} at {point:g}, seed {seed}: perplexity {found.best.perplexity:.1f} after "
            f"{len(found.trials)} evaluations ({found.n_replayed} kept)"
        )
        self._done[name, point, seed] = found
        return found

    def one_shot(self, name: str, point: float) -> Plan:
        """A baseline's plan: its own criterion and allocation, the same decode time."""
        measured = self._opened.quality.importances
        criterion = "block-influence" if name == "shortgpt" else name
        space = self.space(point, "flap" if name == "uniform" else criterion)
        if name == "flap":
            levels = by_threshold(space, measured["flap"], standardized=True)
        elif name == "shortgpt":
            levels = by_depth(space, measured["block-influence"])
        else:
            levels = space.uniform()
        made = space.plan(levels, made_by=name)
        self.one_shot_violations += not space.keeps_budgets(made)
        return made

    def tested(self, name: str, plan: Plan) -> float:
        """Held-out perplexity, kept from an earlier run if there."""
        key = name + json.dumps([[p.n_kv_heads, p.q_per_kv, p.n_ffn] for p in plan.layers])
        if key not in self._tested.values:
            whole = name == "whole"
            judged = plan if not whole else _with_importance(plan)
            value = self._opened.held_out(
                judged, self._test_text, n_windows=self._plan.test_windows,
                width=self._plan.test_width,
            )  # fmt: skip
            self._tested.put(key, value)
            self._say(f"{name}: held-out perplexity {value:.1f}")
        return self._tested.values[key]

    def row(self, name: str, point: float, plan: Plan, whole: Plan, base: float) -> Figures:
        """One method at one point."""
        tested = self.tested(name, plan)
        decode_ms = self._costs.cost(plan).decode_ms
        out: Figures = {
            _field("ppl", name, point): tested,
            _field("ppl_ratio", name, point): tested / base,
            _field("decode_ratio", name, point): decode_ms / self._whole_ms,
        }
        measured, full = self._measure(plan), self._measure(whole)
        if measured is not None and full is not None:
            out[_field("decode_ratio_measured", name, point)] = measured / full
        return out

    def gains(self) -> Figures:
        """The best score of ours over random's, for each seed at the one point."""
        point, out, wins = self._plan.gain_point, {}, 0
        for seed in self._plan.seeds:
            gain = self._ours(seed) / self._done["random", point, seed].best.score
            out[f"search_gain_seed_{seed}"] = gain
            wins += gain > 1
        first = self._plan.seeds[0]
        seeded = self._done["random-seeded", point, first].best.score
        return {
            **out,
            "search_gain": min(out.values()),
            "search_gain_wins": wins,
            "search_gain_over_seeded_random": self._ours(first) / seeded,
        }

    def _ours(self, seed: int) -> float:
        point = self._plan.gain_point
        return max(
            found.best.score
            for (name, at, own), found in self._done.items()
            if name in OURS and at == point and own == seed
        )


class _Kept:
    """Numbers by key in a JSON file, written whole after each."""

    def __init__(self, path: Path, label: Mapping[str, Any]) -> None:
        self._path, self._label = path, dict(label)
        self.values: dict[str, float] = {}
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["label"] == self._label:
                self.values = data["values"]

    def put(self, key: str, value: float) -> None:
        self.values[key] = value
        with atomic_write(self._path) as file:
            file.write(json.dumps({"label": self._label, "values": self.values}).encode())


def _with_importance(plan: Plan) -> Plan:
    """The uncut model, by a criterion that is always measured."""
    return Plan(base_digest=plan.base_digest, layers=plan.layers, importance=_IMPORTANCE)


def _best(figures: Figures, point: float, searched: Sequence[str]) -> Figures:
    def least(names: Sequence[str]) -> float:
        return min(float(figures[_field("ppl_ratio", n, point)]) for n in names)

    ours = least([n for n in searched if n in OURS])
    others = least([n for n in (*searched, *ONE_SHOT) if n not in OURS])
    return {
        _field("ppl_ratio", "ours", point): ours,
        _field("ppl_ratio", "best_baseline", point): others,
        _field("ours_over_best_baseline", "", point): ours / others,
    }


def _field(kind: str, name: str, point: float) -> str:
    return "_".join(p for p in (kind, name.replace("-", "_"), _percent(point)) if p)


def _percent(point: float) -> str:
    return f"{round(100 * point)}"
