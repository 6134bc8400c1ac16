"""Goals and plots of `floe bench power`. Every joule is modelled."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal
from floe.evaluation.plot import Lines
from floe.evaluation.power_bench import BOARDS, PARETO, field_name

GOALS = (
    Goal(
        field="above_optimum_worst", value=0.03, at_most=True,
        about="energy over performance above the optimum's, worst board (modelled)",
    ),
    Goal(
        field="energy_vs_performance_where_half", value=0.63, at_most=True,
        about="energy over performance where the optimum is at most 0.60 (modelled)",
    ),
    Goal(field="slo_violation_rate", value=0.02, at_most=True, about="goals missed, worst board"),
    Goal(
        field="slo_violation_above_performance", value=0.01, at_most=True,
        about="missed beyond the performance governor",
    ),
    Goal(
        field="gap_to_optimum", value=0.10, at_most=True,
        about="share of the optimum's saving not reached, pooled (modelled)",
    ),
    Goal(
        field="energy_vs_best_rule_worst", value=1.0, at_most=True,
        about="energy over the best rule in time, worst board (modelled)",
    ),
    Goal(
        field="energy_vs_best_rule", value=0.97, at_most=True,
        about="the same, pooled (modelled)",
    ),
    Goal(field="decision_us_p50", value=50, at_most=True, about="microseconds a decision"),
    Goal(field="params", value=999, at_most=True, about="parameters of the policy"),
    Goal(field="fit_mape_latency", value=0.08, at_most=True, about="latency fit, worst board"),
    Goal(field="fit_mape_power", value=0.08, at_most=True, about="power fit, worst board"),
    Goal(
        field="length_mae_ratio", value=0.7, at_most=True,
        about="error of tokens left over the best constant's",
    ),
    Goal(field="restores", value=1, about="clocks put back in all five ways (1 = yes)"),
    Goal(
        field="unseen_board", value=0.2, at_most=True,
        about="gap on boards not seen before, after 200 requests (modelled)",
    ),
    Goal(
        field="accel_time_ratio_error_orin_nx", value=0.15, at_most=True,
        about="accelerator's time ratio against the paper, row not calibrated on",
    ),
    Goal(
        field="accel_energy_ratio_error_orin_nx", value=0.15, at_most=True,
        about="accelerator's energy ratio against the paper, row not calibrated on",
    ),
)  # fmt: skip
_SIDES = (
    ("optimum", "optimum_vs_performance"),
    ("learned", "energy_vs_performance"),
    ("learned with idle", "energy_with_idle"),
)
CHARTS = tuple(
    Chart(
        title=f"Energy on {board}, modelled",
        unit="share of the performance governor's",
        bars=tuple((label, f"{key}_{field_name(board)}") for label, key in _SIDES),
    )
    for board in BOARDS
)


def _points(key: str) -> tuple[tuple[float | str, str], ...]:
    return tuple((f"pareto_tpot_{n}", f"{key}_{n}") for n in range(len(PARETO)))


PLOTS = (
    Lines(
        title="Energy against the time of a token on odroid-xu3, modelled",
        unit="share of the performance governor's energy",
        x_unit="mean time of a token over the fastest",
        series=(
            ("learned", _points("pareto_energy")),
            ("optimum for the same goals", _points("pareto_optimum")),
        ),
    ),
)
