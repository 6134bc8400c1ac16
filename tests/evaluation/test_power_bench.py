"""`floe bench power`: a tiny plan gives every field, flat and labelled; its parts are right."""

from __future__ import annotations

import json

import pytest

from floe.evaluation import power_restores, report
from floe.evaluation.bench import BENCHMARKS
from floe.evaluation.power_bench import BOARDS, QUICK, Plan, field_name, power_figures
from floe.evaluation.power_runs import CONVERSATION, Watched, compare, jobs_of
from floe.power.base import Goals, Step
from floe.power.boards.catalogue import fitted
from floe.power.controllers.dqn import Dqn
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS
from floe.power.controllers.policy import blank
from floe.power.controllers.rules import rule
from floe.power.simulate import simulate
from floe.testing.controller_conformance import states


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    return power_figures(Plan(jobs=8, seeds=1, adapt_jobs=6))


def test_every_field_of_a_goal_is_measured_and_everything_is_flat(
    figures: dict[str, object],
) -> None:
    page = report.PAGES["power"]
    assert "power" in BENCHMARKS and QUICK.jobs >= 100
    for goal in page.goals:
        assert isinstance(figures[goal.field], (int, float)), goal.field
    for chart in page.charts:
        assert all(figures[key] is not None for _, key in chart.bars)
    assert all(v is None or isinstance(v, (str, int, float)) for v in figures.values())
    assert json.loads(json.dumps(figures)) == figures
    assert figures["label"] == "modelled"
    assert "modelled" in report.page("power", figures, command="floe bench power")


def test_the_optimum_is_a_bound_on_every_board(figures: dict[str, float]) -> None:
    for board in map(field_name, BOARDS):
        own, best = (figures[f"{k}_vs_performance_{board}"] for k in ("energy", "optimum"))
        assert best <= own + 1e-6 and best <= 1 + 1e-9
        assert figures[f"above_optimum_{board}"] == pytest.approx(own - best)


def test_the_best_rule_is_in_time_and_no_other_in_time_takes_less() -> None:
    model = fitted("odroid-xu3").model
    policy = blank(N_FEATURES, 4, N_OUTPUTS)
    values = blank(N_FEATURES, 4, model.n_settings)
    one = compare(
        model, policy, setup=CONVERSATION, n_jobs=15, seeds=[1, 2], spread=0.5,
        extra={"dqn": lambda: Dqn(model, values)},
    )  # fmt: skip
    assert {"performance", "fixed-best", "learned", "dqn"} < one.by_name.keys()
    assert one.best_rule not in ("learned", "dqn", "powersave")
    best = one.by_name[one.best_rule]
    assert best.violation_ttft <= 0.02 and best.violation_tpot <= 0.02
    for name, totals in one.by_name.items():
        if totals.violation_ttft == totals.violation_tpot == 0 and name not in ("learned", "dqn"):
            assert best.energy_j <= totals.energy_j
    jobs = [jobs_of(model, CONVERSATION, 15, seed) for seed in (1, 2)]
    alone = [simulate(model, rule("performance", model), some) for some in jobs]
    assert one.base.energy_j == pytest.approx(sum(r.energy_j for r in alone))
    assert one.base.all_j == pytest.approx(sum(r.energy_j + r.idle_j for r in alone))


def test_a_miss_that_full_speed_would_not_have_had_is_avoidable() -> None:
    model = fitted("odroid-xu3").model
    fast_ms = float(model.decode_ms(0)[model.fastest])
    us: list[float] = []
    avoidable: list[bool] = []
    watched = Watched(rule("performance", model), model, us, avoidable)
    state = next(s for s in states(model) if s.phase == "decode" and s.load == 0.0)
    for took, goal in ((2.0, 1.5), (1.0, 1.5), (2.0, 0.5)):
        watched.begin(Goals(ttft_ms=1.0, tpot_ms=goal * fast_ms))
        watched.decide(state)
        context = float(model.decode_ms(state.prompt_tokens + state.tokens_done)[model.fastest])
        clocks = model.clocks(0)
        watched.seen(Step(phase="decode", tokens=8, duration_ms=8 * took * context, clocks=clocks))
    watched.close()
    assert avoidable == [True, False, False] and len(us) == 3


def test_clocks_are_put_back_in_every_way() -> None:
    found = power_restores.restores()
    assert len(found) == 5 and all(found.values()), found


def test_a_way_that_leaves_clocks_low_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(root, _folder):  # type: ignore[no-untyped-def]
        policy = root / "sys/devices/system/cpu/cpufreq/policy0"
        (policy / "scaling_max_freq").write_text("600000")
        return True

    monkeypatch.setattr(power_restores, "WAYS", {"kill9": leaves})
    assert power_restores.restores() == {"restores_kill9": False}
