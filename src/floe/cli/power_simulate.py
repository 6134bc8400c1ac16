"""Controllers on simulated boards, compared and trained. Every joule here is modelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from floe.cli.common import say
from floe.core.config import home
from floe.power.base import Controller
from floe.power.boards.catalogue import BOARDS, fitted
from floe.power.boards.model import BoardModel
from floe.power.build import controller_for
from floe.power.controllers.policy import Policy
from floe.power.controllers.rules import RULES, Fixed
from floe.power.optimum import optimum
from floe.power.simulate import Run, simulate
from floe.power.train import TRAIN_BOARDS, Judged, judge, scenarios, train
from floe.power.workload import Job, workload

FIXED = "fixed-best"
_TUNING_JOBS = 24


def board_lines() -> Iterator[str]:
    """The boards with their clocks and how well they fit rows they were not fitted to."""
    for name in BOARDS:
        found = fitted(name)
        clocks = ", ".join(
            f"{d.name} {d.steps_mhz[0]:g} to {d.steps_mhz[-1]:g} "
            f"{'W' if d.name == 'limit' else 'MHz'}"
            for d in found.model.board.domains
        )
        misses = "; ".join(
            f"{what} within {share:.1%}"
            for what, share in (("latency", found.latency_mape), ("power", found.power_mape))
            if share is not None
        )
        yield f"{name:<18} {found.model.n_settings:>4} settings: {clocks}; {misses or 'not fitted'}"


def board_rows() -> list[dict[str, Any]]:
    """The same as JSON; a clock's `unit` is MHz, a power limit's W."""
    return [
        {
            "board": name,
            "settings": fitted(name).model.n_settings,
            "domains": [
                {
                    "name": d.name,
                    "unit": "W" if d.name == "limit" else "MHz",
                    "low": d.steps_mhz[0],
                    "high": d.steps_mhz[-1],
                }
                for d in fitted(name).model.board.domains
            ],
            "latency_mape": fitted(name).latency_mape,
            "power_mape": fitted(name).power_mape,
        }
        for name in BOARDS
    ]


def comparison(
    board: str, names: Sequence[str], *, n_jobs: int, queue: bool, seed: int
) -> dict[str, Any]:
    """Each controller's energy and missed goals on the same requests, beside the optimum."""
    model = fitted(board).model
    jobs = jobs_for(model, n_jobs=n_jobs, queue=queue, seed=seed)
    chosen = {name: make(name, model, board) for name in names}  # an unknown name is known first
    base_j = simulate(model, make("performance", model, board), jobs).energy_j
    least = optimum(model, jobs)
    return {
        "board": board,
        "label": "modelled",
        "jobs": n_jobs,
        "queue": queue,
        "optimum_j": least.energy_j,
        "optimum_vs_performance": least.energy_j / base_j,
        "optimum_violation_ttft": least.violation_ttft,
        "optimum_violation_tpot": least.violation_tpot,
        "controllers": [
            _row(name, simulate(model, one, jobs), base_j=base_j, least_j=least.energy_j)
            for name, one in chosen.items()
        ],
    }


def jobs_for(model: BoardModel, *, n_jobs: int, queue: bool, seed: int) -> list[Job]:
    """Requests of the half of the traces that nothing was trained on."""
    load = 0.1 if queue else 0.35
    return workload(model, n=n_jobs, part="test", seed=seed, queue=queue, utilisation=load)


def make(name: str, model: BoardModel, board: str) -> Controller:
    """The controller of that name; fixed-best is chosen on training requests.

    Raises:
        BadConfig: no such controller.
    """
    if name != FIXED:
        return controller_for(name, model, home=home(), board=board)
    jobs = workload(model, n=_TUNING_JOBS, part="train", seed=0)
    fastest = simulate(model, RULES["performance"](model), jobs)
    runs = [simulate(model, Fixed(model, setting=k), jobs) for k in range(model.n_settings)]
    fits = [
        k
        for k, ran in enumerate(runs)
        if ran.violation_ttft <= fastest.violation_ttft + 0.01
        and ran.violation_tpot <= fastest.violation_tpot + 0.01
    ]
    return Fixed(model, setting=min(fits or [model.fastest], key=lambda k: runs[k].energy_j))


def _row(name: str, ran: Run, *, base_j: float, least_j: float) -> dict[str, Any]:
    room_j = base_j - least_j
    return {
        "controller": name,
        "energy_j": ran.energy_j,
        "idle_j": ran.idle_j,
        "vs_performance": ran.energy_j / base_j,
        "gap_to_optimum": (ran.energy_j - least_j) / room_j if room_j > 0 else None,
        "violation_ttft": ran.violation_ttft,
        "violation_tpot": ran.violation_tpot,
        "switches": ran.switches,
        "throttled": ran.throttled,
    }


def comparison_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The comparison as a table, cheapest first."""
    order = "in a queue" if found["queue"] else "in conversations"
    yield f"{found['board']}: {found['jobs']} requests {order}. All joules are modelled."
    heads = ("controller", "energy J", "of perf.", "gap", "late TTFT", "late TPOT", "switches")
    yield "{:<16} {:>10} {:>9} {:>7} {:>10} {:>10} {:>9}".format(*heads)
    for row in sorted(found["controllers"], key=lambda r: r["energy_j"]):
        gap = "-" if row["gap_to_optimum"] is None else f"{row['gap_to_optimum']:.2f}"
        yield (
            f"{row['controller']:<16} {row['energy_j']:>10.2f} {row['vs_performance']:>9.3f} "
            f"{gap:>7} {row['violation_ttft']:>10.1%} {row['violation_tpot']:>10.1%} "
            f"{row['switches']:>9}"
        )
    yield (
        f"{'optimum':<16} {found['optimum_j']:>10.2f} {found['optimum_vs_performance']:>9.3f} "
        f"{0:>7.2f} {found['optimum_violation_ttft']:>10.1%} "
        f"{found['optimum_violation_tpot']:>10.1%} {'-':>9}"
    )


def train_policy(
    boards: Sequence[str] | None, *, generations: int, n_jobs: int, seed: int
) -> tuple[Policy, Judged]:
    """A policy, and how it does on requests it was not trained on."""
    names = tuple(boards or TRAIN_BOARDS)
    where = scenarios("train", seed=seed, n_jobs=n_jobs, boards=names)
    with _progress(generations) as tell:
        policy = train(where, generations=generations, seed=seed, say=tell)
    held_out = scenarios("test", seed=seed, n_jobs=n_jobs, boards=names)
    return policy, judge(policy, held_out)


@contextmanager
def _progress(generations: int) -> Iterator[Callable[[int, Judged], None]]:
    """A bar on a terminal, else a line for each generation."""

    def line(n: int, judged: Judged) -> str:
        return f"generation {n + 1} of {generations}: energy {judged.energy:.3f}"

    if not sys.stderr.isatty():
        yield lambda n, judged: say(f"floe: {line(n, judged)}")
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("training", total=generations)
        yield lambda n, judged: bars.update(task, completed=n + 1, description=line(n, judged))


def report_page(board: str, names: Sequence[str], *, n_jobs: int, queue: bool, seed: int) -> str:
    """The HTML page of `floe power report`."""
    from floe.evaluation.power_report import Told, page

    model = fitted(board).model
    jobs = jobs_for(model, n_jobs=n_jobs, queue=queue, seed=seed)
    told = [
        Told(
            name=name,
            run=simulate(model, make(name, model, board), jobs, keep_timeline=True),
        )
        for name in names
    ]
    fixed = [simulate(model, Fixed(model, setting=k), jobs) for k in range(model.n_settings)]
    return page(model, jobs, told, fixed=fixed, bound=optimum(model, jobs))
