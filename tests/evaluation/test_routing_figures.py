"""The router's benchmark: worlds, memories and sums that add up; figures without gaps."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from floe.adapters.epochs import EpochSettings
from floe.core.errors import BadModel
from floe.core.sections import RoutingConfig
from floe.evaluation import routing_bench, routing_page
from floe.evaluation.bench import BENCHMARKS
from floe.evaluation.report import PAGES, page
from floe.evaluation.routing_accuracy import accuracy_figures
from floe.evaluation.routing_policies import BASE, EdgeLora, Gate, Memory, StaticMemory
from floe.evaluation.routing_sim import best_fixed, free_best, policies, run
from floe.evaluation.routing_worlds import World, card, data_file, generated, load_times, replay

CONFIG = RoutingConfig(agreement=True, miss_cost_per_s=1.0)


def world() -> World:
    return generated(requests=300, seed=5, adapters=12, topics=6)


def test_a_memory_holds_no_more_than_its_budget_and_frees_the_oldest() -> None:
    one = Memory([4, 3, 3, 9], 8)
    assert [one.use(k) for k in (0, 1, 0, 2)] == [True, True, False, True]
    assert one.mask.tolist() == [True, False, True, False]  # 1 was the oldest
    assert one.use(3)  # larger than all: served once, nothing goes for it
    assert one.mask.tolist() == [True, False, True, False]
    assert one.prefer([2]) == []
    assert one.use(1)
    assert one.mask.tolist() == [False, True, True, False]  # 0 is not preferred
    fixed = StaticMemory([4, 3], 4, [0])
    assert [fixed.use(k) for k in (0, 1, 1)] == [False, True, True]


def test_edgelora_takes_one_in_memory_among_the_best_few() -> None:
    memory, cos = Memory([1] * 4, 2), np.array([0.5, 0.4, 0.3, 0.29])
    one, nearest = EdgeLora(memory, CONFIG), Gate(memory, CONFIG)
    nothing = np.zeros(2, dtype=np.float32)
    assert one.choose(nothing, cos) == nearest.choose(nothing, cos) == 0
    memory.use(3)  # fourth best: not among the best three
    assert one.choose(nothing, cos) == 0
    memory.use(2)
    assert one.choose(nothing, cos) == 2
    assert one.choose(nothing, cos - 0.3) == BASE


@pytest.mark.parametrize("seed", [1, 2])
def test_sums_add_up_for_every_policy(seed: int) -> None:
    here = world()
    costs = here.load_ms / 1000
    free, fixed = free_best(here), best_fixed(here, costs)
    assert (fixed <= free + 1e-12).all()
    for make in policies(here, CONFIG, costs, EpochSettings(first=32), seed=seed).values():
        policy = make()
        done = run(here, policy, costs, seed=seed)
        assert (done.net <= free + 1e-12).all()
        paid = done.worth - done.net
        assert (paid >= -1e-12).all()
        assert (paid > 0).sum() == (done.loads > 0).sum()
        assert np.array(here.n_bytes)[policy.memory.mask].sum() <= here.budget_bytes


def test_a_run_can_be_repeated() -> None:
    here = world()
    costs = here.load_ms / 1000
    nets = [
        run(here, policies(here, CONFIG, costs, EpochSettings(), seed=1)["ours"](), costs, seed=1)
        for _ in range(2)
    ]
    assert (nets[0].net == nets[1].net).all()


def test_with_free_loads_the_best_fixed_set_is_the_best_there_is() -> None:
    here = world()
    assert best_fixed(here, np.zeros(12)) == pytest.approx(free_best(here))
    poor = replace(here, budget_bytes=0)
    costs = np.full(12, 9.0)
    assert best_fixed(poor, costs) == pytest.approx(np.zeros(300))


def test_the_replay_is_of_the_recorded_losses() -> None:
    places = routing_bench.shipped_centroids()
    here = replay(requests=500, seed=3, centroids=places, part="report")
    with np.load(data_file("adapter_losses.npz"), allow_pickle=False) as stored:
        loss_PA, is_report_P = stored["loss_PA"], stored["is_report_P"]
    assert np.isfinite(loss_PA).all()
    assert (loss_PA > 0).all()
    assert card()["counts"] == {
        "tune": int((~is_report_P).sum()), "report": int(is_report_P.sum()),
    }  # fmt: skip
    rows = {tuple(np.round(r[0] - r[1:], 4)) for r in loss_PA[is_report_P].astype(np.float64)}
    assert {tuple(np.round(r, 4)) for r in here.worth} <= rows
    assert np.linalg.norm(here.embeddings, axis=1) == pytest.approx(1, abs=1e-5)
    assert here.budget_bytes == 2 * here.n_bytes[0]


def test_load_times_are_the_measured_line_and_the_cards_reading() -> None:
    loads = [{"bytes": 1e6, "warm_ms": 3.0}, {"bytes": 3e6, "warm_ms": 7.0}]
    found = load_times(loads, np.array([2e6, 40e6]))
    assert found == pytest.approx([5 + 50, 81 + 1000])


def test_b35_accuracies_of_another_encoder_are_refused() -> None:
    digest = json.loads(data_file("route_vectors.json").read_text("utf-8"))["encoder_digest"]
    found = accuracy_figures(digest)
    assert found["route_accuracy"] > 0.9
    assert found["route_accuracy_tasks"] < found["route_accuracy_tasks_shown"]
    with pytest.raises(BadModel, match="were made with another encoder"):
        accuracy_figures("x")


def test_every_field_of_the_page_is_measured(
    monkeypatch: pytest.MonkeyPatch, models_home: Path
) -> None:
    monkeypatch.setenv("FLOE_HOME", str(models_home))
    monkeypatch.setattr(routing_bench, "REQUESTS", 160)
    monkeypatch.setattr(
        routing_bench, "decision_figures", lambda: {"decision_us_p50": 1.0, "learn_us_p50": 1.0}
    )
    said: list[str] = []
    figures = BENCHMARKS["routing"].run(False, said.append)
    assert len(said) == 3
    for name, value in figures.items():
        assert value is None or isinstance(value, int | float | str), name
        assert not (isinstance(value, float) and math.isnan(value)), name
    fields = {goal.field for goal in routing_page.GOALS}
    fields |= {field for chart in routing_page.CHARTS for _, field in chart.bars}
    fields |= {y for plot in routing_page.PLOTS for _, points in plot.series for _, y in points}
    assert fields <= set(figures)
    assert PAGES["routing"].goals == routing_page.GOALS
    assert "Regret against the best fixed set" in page("routing", figures, command="floe bench")


def test_learning_is_timed_in_microseconds() -> None:
    found = routing_bench.decision_figures(adapters=40, width=8, rounds=5)
    assert 1 < found["decision_us_p50"] < 1e6
    assert found["learn_us_p50"] > 1


def test_where_a_second_costs_more_the_same_is_compared() -> None:
    found = routing_bench.price_figures(world(), lambda _said: None)
    assert set(found) == {
        f"regret_ratio_{rival}_price_{price}"
        for rival in routing_bench.RIVALS
        for price in ("0_1", "0_3", "3")
    }
