"""`floe bench power`: joules under latency goals on boards modelled from published measurements.

Every joule and millisecond here is modelled. Jobs are of the test half of the traces, the policy
and the best fixed setting come from the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from floe.evaluation.power_restores import restores
from floe.evaluation.power_runs import (
    BESIDE,
    CONVERSATION,
    QUEUE,
    Adapted,
    Compared,
    Setup,
    compare,
    jobs_of,
    unseen,
)
from floe.power.base import Controller
from floe.power.boards.accelerator import TABLE_3, ratios
from floe.power.boards.catalogue import fitted
from floe.power.boards.model import BoardModel
from floe.power.controllers.dqn import Dqn
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, Learned
from floe.power.controllers.policy import Policy, shipped
from floe.power.controllers.rules import rule
from floe.power.length import shipped_length_model
from floe.power.optimum import optimum
from floe.power.simulate import simulate
from floe.power.train import erring

Say = Callable[[str], None]
Figures = dict[str, Any]
BOARDS = ("orin-nano-super", "orin-nx", "odroid-xu3", "a40", "v100")
LEAST_SAVED = 0.01
"""A share of the gap to the optimum is only given where the optimum saves this much."""
_DQN_BOARD, _PARETO_BOARD = "orin-nano-super", "odroid-xu3"
PARETO = (0.7, 1.0, 1.3, 1.7, 2.2, 3.0)
"""Token goals of the Pareto curve, in multiples of the fastest token."""
_FIRST_SEED = 5001


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is simulated."""

    jobs: int
    seeds: int
    adapt_jobs: int = 200


QUICK = Plan(jobs=200, seeds=2)
FULL = Plan(jobs=400, seeds=8)


def power_benchmark(full: bool, say: Say) -> Figures:
    """Issue 8's figures."""
    return power_figures(FULL if full else QUICK, say)


def power_figures(plan: Plan, say: Say = lambda _: None) -> Figures:
    """The figures of a plan as a flat object."""
    policy = shipped("policy", features=N_FEATURES, outputs=N_OUTPUTS)
    length = shipped_length_model()
    models = {name: fitted(name).model for name in BOARDS}
    seeds = range(_FIRST_SEED, _FIRST_SEED + plan.seeds)
    found: dict[Setup, dict[str, Compared]] = {CONVERSATION: {}, QUEUE: {}, BESIDE: {}}
    for setup, by_board in found.items():
        for name, model in models.items():
            say(f"{setup.name}: {name}")
            by_board[name] = compare(
                model, policy, setup=setup, n_jobs=plan.jobs, seeds=seeds,
                spread=length.log_spread, extra=_dqn(name, model),
            )  # fmt: skip
    say("boards not seen before")
    adapted = {
        name: unseen(
            model, policy, n_jobs=plan.adapt_jobs, seed=_FIRST_SEED, spread=length.log_spread
        )
        for name, model in models.items()
    }
    say("clocks put back")
    back = restores()
    return {
        "label": "modelled",
        "jobs": plan.jobs,
        "seeds": plan.seeds,
        **_conversation(found[CONVERSATION]),
        **_rules(found),
        **_other("queue", found[QUEUE]),
        **_other("beside", found[BESIDE]),
        **_decisions(found[CONVERSATION], policy),
        **_fits(),
        "length_mae_ratio": length.mae_tokens / length.constant_mae_tokens,
        "length_mae_tokens": length.mae_tokens,
        "length_constant_mae_tokens": length.constant_mae_tokens,
        "length_log_spread": length.log_spread,
        **{key: int(done) for key, done in back.items()},
        "restores": int(all(back.values())),
        **_unseen(adapted),
        **_accelerator(),
        **_dqn_figures(found[CONVERSATION][_DQN_BOARD]),
        **_pareto(models[_PARETO_BOARD], policy, plan, length.log_spread),
    }


def field_name(board: str) -> str:
    """A board's name in fields."""
    return board.replace("-", "_")


def _dqn(name: str, model: BoardModel) -> Mapping[str, Callable[[], Controller]]:
    if name != _DQN_BOARD:
        return {}
    values = shipped(f"dqn-{name}", features=N_FEATURES, outputs=model.n_settings)
    return {"dqn": lambda: Dqn(model, values)}


def _conversation(by_board: Mapping[str, Compared]) -> Figures:
    """Energy, goals and the gap to the optimum where a person asks after each answer.

    The optimum changes clocks for free, the learned controller pays for it: on the A40, where
    10 ms a change are assumed and the optimum saves 2.5 %, that is the whole gap.
    """
    out: Figures = {}
    excess, missed = [], []
    for board, one in by_board.items():
        name = field_name(board)
        assert one.optimum_j is not None
        own, best = one.share(one.learned.energy_j), one.share(one.optimum_j)
        out |= {
            f"energy_vs_performance_{name}": own,
            f"optimum_vs_performance_{name}": best,
            f"above_optimum_{name}": own - best,
            f"energy_with_idle_{name}": one.learned.all_j / one.base.all_j,
            f"gap_to_optimum_{name}": (own - best) / (1 - best)
            if best <= 1 - LEAST_SAVED
            else None,
        }
        for kind in ("ttft", "tpot"):
            mine, full = (getattr(t, f"violation_{kind}") for t in (one.learned, one.base))
            out[f"slo_violation_{kind}_{name}"] = mine
            out[f"slo_violation_{kind}_performance_{name}"] = full
            missed.append(mine)
            excess.append(mine - full)
    saving = [k for k in by_board if out[f"gap_to_optimum_{field_name(k)}"] is not None]
    above = sum(out[f"above_optimum_{field_name(k)}"] for k in saving)
    could = sum(1 - out[f"optimum_vs_performance_{field_name(k)}"] for k in saving)
    half = [
        out[f"energy_vs_performance_{field_name(k)}"]
        for k in by_board
        if out[f"optimum_vs_performance_{field_name(k)}"] <= 0.60
    ]
    return {
        "above_optimum_worst": max(out[f"above_optimum_{field_name(k)}"] for k in by_board),
        "energy_vs_performance_where_half": max(half, default=None),
        "slo_violation_rate": max(missed),
        "slo_violation_above_performance": max(excess),
        "gap_to_optimum": above / could if could else None,
        **out,
    }


def _rules(found: Mapping[Setup, Mapping[str, Compared]]) -> Figures:
    """Beside the best controller that learns nothing and meets the same goals."""
    out: Figures = {}
    for setup, ending in ((CONVERSATION, ""), (QUEUE, "_queue")):
        mine, theirs, bound = 0.0, 0.0, 0.0
        ratios_, with_idle = [], []
        for board, one in found[setup].items():
            best = one.by_name[one.best_rule]
            name = field_name(board)
            out[f"best_rule{ending}_{name}"] = one.best_rule
            out[f"energy_vs_best_rule{ending}_{name}"] = one.learned.energy_j / best.energy_j
            ratios_.append(one.learned.energy_j / best.energy_j)
            with_idle.append(
                (one.learned.all_j / one.base.all_j, one.least_rule_j / one.base.all_j)
            )
            mine += one.share(one.learned.energy_j)
            theirs += one.share(best.energy_j)
            bound += one.share(one.optimum_j or 0.0)
        out[f"energy_vs_best_rule{ending}"] = mine / theirs
        out[f"optimum_vs_best_rule{ending}"] = bound / theirs
        out[f"energy_vs_best_rule{ending}_worst"] = max(ratios_)
        own_idle, best_idle = (sum(column) for column in zip(*with_idle, strict=True))
        out[f"energy_with_idle_vs_best_rule{ending}"] = own_idle / best_idle
    return out


def _other(ending: str, by_board: Mapping[str, Compared]) -> Figures:
    """Open arrivals, and another program on the board.

    The other program meets each controller's requests at other times, since their pauses follow
    their answers: `slo_avoidable` counts those that full speed would have had in time.
    """
    out: Figures = {}
    excess = []
    for board, one in by_board.items():
        name = field_name(board)
        out[f"energy_vs_performance_{ending}_{name}"] = one.share(one.learned.energy_j)
        out[f"slo_avoidable_tpot_{ending}_{name}"] = one.avoidable_tpot
        if one.optimum_j is not None:
            out[f"optimum_vs_performance_{ending}_{name}"] = one.share(one.optimum_j)
        for kind in ("ttft", "tpot"):
            mine, full = (getattr(t, f"violation_{kind}") for t in (one.learned, one.base))
            out[f"slo_violation_{kind}_{ending}_{name}"] = mine
            out[f"slo_violation_{kind}_performance_{ending}_{name}"] = full
            excess.append(mine - full)
    return {f"slo_violation_above_performance_{ending}": max(excess), **out}


def _decisions(by_board: Mapping[str, Compared], policy: Policy) -> Figures:
    return {
        "decision_us_p50": max(float(np.median(one.decision_us)) for one in by_board.values()),
        "decision_us_p99": max(
            float(np.quantile(one.decision_us, 0.99)) for one in by_board.values()
        ),
        "params": policy.n_parameters,
        "policy_card": str(policy.card.get("note", policy.card)),
    }


def _fits() -> Figures:
    """How well the board models fit rows they have not seen; the NX has none to be checked on."""
    out: Figures = {}
    latency, power = [], []
    for board in BOARDS:
        fit, name = fitted(board), field_name(board)
        out[f"fit_mape_latency_{name}"] = fit.latency_mape
        out[f"fit_mape_power_{name}"] = fit.power_mape
        latency += [] if fit.latency_mape is None else [fit.latency_mape]
        power += [] if fit.power_mape is None else [fit.power_mape]
        out |= {f"fit_{key}_{name}": v for key, v in fit.notes.items() if isinstance(v, float)}
    return {"fit_mape_latency": max(latency), "fit_mape_power": max(power), **out}


def _unseen(adapted: Mapping[str, Adapted]) -> Figures:
    saving = [a for a in adapted.values() if a.optimum <= 1 - LEAST_SAVED]
    could = sum(1 - a.optimum for a in saving)
    out: Figures = {
        "unseen_board": sum(a.learned - a.optimum for a in saving) / could if could else None,
        "unseen_board_missed": max(a.missed for a in adapted.values()),
    }
    for board, a in adapted.items():
        is_known = a.optimum <= 1 - LEAST_SAVED
        gap = (a.learned - a.optimum) / (1 - a.optimum) if is_known else None
        out[f"unseen_board_{field_name(board)}"] = gap
    return out


def _accelerator() -> Figures:
    """The Nano's row is calibrated on, so its errors are zero; the NX's row is the check."""
    out: Figures = {}
    for board in TABLE_3:
        made, name = ratios(board), field_name(board)
        out |= {
            f"accel_time_ratio_{name}": made.time,
            f"accel_time_ratio_published_{name}": made.time_published,
            f"accel_time_ratio_error_{name}": abs(made.time_error),
            f"accel_energy_ratio_{name}": made.energy,
            f"accel_energy_ratio_published_{name}": made.energy_published,
            f"accel_energy_ratio_error_{name}": abs(made.energy_error),
        }
    return out


def _dqn_figures(one: Compared) -> Figures:
    totals = one.by_name["dqn"]
    name = field_name(_DQN_BOARD)
    return {
        f"dqn_energy_vs_performance_{name}": one.share(totals.energy_j),
        f"dqn_slo_violation_ttft_{name}": totals.violation_ttft,
        f"dqn_slo_violation_tpot_{name}": totals.violation_tpot,
    }


def _pareto(model: BoardModel, policy: Policy, plan: Plan, spread: float) -> Figures:
    """Latency against energy as the token goal moves; x is the mean token over the fastest."""
    out: Figures = {}
    jobs = jobs_of(model, CONVERSATION, plan.jobs // 2, _FIRST_SEED)
    base = simulate(model, rule("performance", model), jobs)
    fast = [s.tpot_ms for s in base.served]
    for n, times in enumerate(PARETO):
        asked = [
            replace(job, goals=replace(job.goals, tpot_ms=times * ms))
            for job, ms in zip(jobs, fast, strict=True)
        ]
        run = simulate(
            model, Learned(model, policy), asked, guess=erring(_FIRST_SEED, spread=spread)
        )
        out[f"pareto_goal_{n}"] = times
        out[f"pareto_tpot_{n}"] = _mean([s.tpot_ms for s in run.served], fast)
        out[f"pareto_energy_{n}"] = run.energy_j / base.energy_j
        out[f"pareto_optimum_{n}"] = optimum(model, asked).energy_j / base.energy_j
    return out


def _mean(own: Sequence[float], fast: Sequence[float]) -> float:
    return float(np.mean([a / b for a, b in zip(own, fast, strict=True) if b > 0]))
