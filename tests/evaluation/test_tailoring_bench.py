"""Parts of `floe bench tailoring` that can be wrong without a model, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from floe.evaluation import tailoring_page
from floe.evaluation.bench import BENCHMARKS
from floe.evaluation.report import PAGES, page
from floe.evaluation.tailoring_bench import PARTS
from floe.evaluation.tailoring_builds import compared
from floe.evaluation.tailoring_carry import CarryPlan, summed
from floe.evaluation.tailoring_latency import held_out_plans
from floe.tailoring.base import Budgets
from floe.tailoring.genes import Choices
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.plan import GROUPS, ModelShape
from floe.tailoring.space import Space

SHAPE = ModelShape(
    base_digest="b" * 64, n_layers=6, width=64, n_kv_heads=2, q_per_kv=2, head_width=16,
    n_ffn=512, n_vocab=300,
)  # fmt: skip
MODELS = ("f16", "q8_0", "served", "q4_1", "q4_0", "bits", "tailored")


class Device:
    """As much of a profile as plans are drawn with."""

    shape = SHAPE

    def costs(self) -> ModelledCost:
        return ModelledCost(shape=SHAPE, bytes_per_ms=1e4)


def test_it_is_a_benchmark_with_a_page() -> None:
    assert "tailoring" in BENCHMARKS and "tailoring" in PAGES
    figures = {goal.field: goal.value for goal in tailoring_page.GOALS}
    text = page("tailoring", {"benchmark": "tailoring", **figures}, command="x")
    assert text.count("reached") == len(tailoring_page.GOALS)
    assert [part.name for part in PARTS] == ["latency", "builds", "carry", "search"]


def test_the_quick_form_is_not_held_to_goals_of_the_whole_model() -> None:
    bad = {"ppl_rise": 4e7, "search_gain": 0.9, "adapter_carry": 3.0, "budget_violations": 0}
    quick = page("tailoring", {"benchmark": "tailoring", "form": "quick", **bad}, command="x")
    assert "missed" not in quick and quick.count("reached") == 1
    full = page("tailoring", {"benchmark": "tailoring", "form": "full", **bad}, command="x")
    assert full.count("missed") == 3 and full.count("reached") == 1


def test_held_out_plans_are_of_each_type_and_inside_the_model() -> None:
    plans = held_out_plans(Device(), ("F16", "Q8_0"), n=6)  # type: ignore[arg-type]
    assert [p.quants["ffn"] for p in plans] == ["F16", "Q8_0"] * 3
    costs = Device().costs()
    for plan in plans:
        types = dict(plan.quants)
        assert set(types) == set(GROUPS)
        space = Space(
            shape=SHAPE, cost=costs, budgets=Budgets(), choices=Choices(fixed_quants=types)
        )
        most = costs.cost(space.plan(space.highest)).decode_ms
        assert costs.cost(plan).decode_ms < most
    assert len({p.layers for p in plans}) > 1
    assert held_out_plans(Device(), ("F16",), n=1)[0].layers == plans[0].layers  # type: ignore[arg-type]


def test_ratios_say_how_often_faster_and_how_much_smaller() -> None:
    figures: dict[str, float] = {}
    for name in MODELS:
        scale = 1.0 if name == "tailored" else 2.0
        figures |= {
            f"decode_ms_{name}": 5 * scale, f"prefill_ms_{name}": 7 * scale,
            f"weights_bytes_{name}": 100 * scale, f"memory_bytes_{name}": 300 * scale,
            f"ppl_{name}": 20.0,
        }  # fmt: skip
    figures |= {"ppl_served_recovered": 16.0, "ppl_bits_recovered": 25.0, "ppl_tailored": 20.5}
    found = compared(figures)
    assert found["speedup_decode"] == found["speedup_prefill"] == 2.0
    assert found["speedup_decode_over_served"] == 2.0
    assert found["memory_ratio"] == found["memory_ratio_with_cache"] == 0.5
    assert found["ppl_rise"] == pytest.approx(0.025)
    assert found["ppl_over_bits_recovered"] == pytest.approx(0.82)


def test_the_gap_is_of_what_training_anew_gains() -> None:
    losses = [
        {"original": 1.0, "plain": 3.0, "carried": 1.3, "repaired": 1.1, "retrained": 1.0},
        {"original": 1.0, "plain": 5.0, "carried": 1.5, "repaired": 1.1, "retrained": 1.0},
    ]
    found = summed(losses, CarryPlan())
    assert found["adapter_carry"] == pytest.approx(0.4 / 3.0)
    assert found["adapter_carry_repaired"] == pytest.approx(0.1 / 3.0)
    useless = [{**losses[0], "retrained": 3.5}]
    assert summed(useless, CarryPlan())["adapter_carry"] is None


def test_data_is_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from floe.evaluation.tailoring_setup import WIKITEXT, find_wikitext

    (tmp_path / "test.txt").write_text("x")
    monkeypatch.setenv(WIKITEXT, str(tmp_path))
    assert find_wikitext() == tmp_path
