"""The comparison of searches on a tiny model: every field, nothing run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floe.evaluation.tailoring_search import ONE_SHOT, SearchPlan, compare_searches
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.on_torch.opened import Amounts, Opened, open_quality
from floe.tailoring.plan import Plan
from floe.tailoring.text import sample_text
from floe.testing.tiny_layers import TinyShape, make_tiny_layers

PLAN = SearchPlan(
    points=(0.8,), n_evaluations=8, seeds=(0, 1), gain_point=0.8,
    searched=("evolutionary", "tpe", "random"), test_windows=2, test_width=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    tiny = make_tiny_layers(tmp_path_factory.mktemp("tiny"), TinyShape(n_layers=6))
    amounts = Amounts(judged_windows=2, judged_width=32, ranked_windows=2, ranked_width=32)
    return open_quality(tiny.folder, sample_text()[:4000], base_digest="d" * 64, amounts=amounts)


def compared(opened: Opened, folder: Path, **more: Any) -> dict[str, Any]:
    costs = ModelledCost(shape=opened.shape, bytes_per_ms=1e4)
    return compare_searches(
        opened, costs, plan=PLAN, test_text=sample_text()[-4000:], folder=folder, **more
    )


def test_every_method_at_the_same_latency_resumable(opened: Opened, tmp_path: Path) -> None:
    asked: list[Plan] = []

    def measure(plan: Plan) -> float:
        asked.append(plan)
        return float(sum(p.n_ffn for p in plan.layers))

    found = compared(opened, tmp_path, measure=measure)
    names = ("evolutionary", "tpe", "random", *(n.replace("-", "_") for n in ONE_SHOT))
    for name in names:
        assert found[f"ppl_ratio_{name}_80"] == found[f"ppl_{name}_80"] / found["ppl_base"]
        assert 0.0 < found[f"decode_ratio_{name}_80"] <= 0.8
        assert 0.0 < found[f"decode_ratio_measured_{name}_80"] <= 1.0
    others = [found[f"ppl_ratio_{n}_80"] for n in names if n != "evolutionary"]
    assert found["ppl_ratio_best_baseline_80"] == min(others)
    assert found["ppl_ratio_ours_80"] == found["ppl_ratio_evolutionary_80"]
    assert found["budget_violations"] == 0
    assert found["search_gain_wins"] == sum(found[f"search_gain_seed_{s}"] > 1 for s in (0, 1))
    assert found["evaluations"] == 8

    runs = opened.quality.runs
    said: list[str] = []
    assert compared(opened, tmp_path, measure=measure, say=said.append) == found
    assert opened.quality.runs == runs
    assert all("8 kept" in line for line in said)


def test_searches_are_judged_on_text_they_never_saw(opened: Opened, tmp_path: Path) -> None:
    found = compared(opened, tmp_path)
    assert found["ppl_evolutionary_80"] != found["calibration_ppl_evolutionary_80"]
