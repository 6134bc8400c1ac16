"""`floe power`: sensors and clocks of this machine, and controllers on simulated boards."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from floe.cli.common import JsonOption, say

app = typer.Typer(
    help="Joules and clocks: what this machine can measure and set, controllers on boards.",
    no_args_is_help=True,
)
RootOption = Annotated[Path, typer.Option("--root", hidden=True, help="Where /sys is; for tests.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Requests to simulate.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Which requests.")]
QueueOption = Annotated[
    bool, typer.Option("--queue", help="Requests come when they come, not after the last answer.")
]
_ROOT = Path("/")
_NAMES = "performance,powersave,schedutil,race-to-idle,feedback,lowest-meeting,learned"


@app.callback()
def _root() -> None:
    """Commands about energy and clocks."""


@app.command("doctor")
def doctor(as_json: JsonOption = False, root: RootOption = _ROOT) -> None:
    """Every sensor and every clock: where, whether it is used, why not, and how to get it.

    Example: floe power doctor
    """
    from floe.cli.power_text import doctor_lines, doctor_rows

    rows = doctor_rows(root)
    print(json.dumps(rows) if as_json else "\n".join(doctor_lines(rows)))


@app.command("status")
def status(
    url: Annotated[
        str | None, typer.Option(help="The server; default: the one on this machine, if any.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="How long this machine is measured.")
    ] = 0.5,
    as_json: JsonOption = False,
    root: RootOption = _ROOT,
) -> None:
    """Clocks, temperature and joules: of the running server, else of this machine now.

    The server's key is FLOE_ADMIN_KEY or FLOE_API_KEY.

    Example: floe power status
    """
    from floe.cli.client import server_metrics
    from floe.cli.power_text import machine_now, power_series, status_lines
    from floe.core.config import home
    from floe.core.errors import NotFound

    key = os.environ.get("FLOE_ADMIN_KEY") or os.environ.get("FLOE_API_KEY")
    try:
        address = url or "http://127.0.0.1:8741"
        found = {"from": address, "series": power_series(server_metrics(address, key))}
    except NotFound:
        if url is not None:
            raise
        found = {"from": "this machine", **machine_now(root, home(), seconds)}
    print(json.dumps(found) if as_json else "\n".join(status_lines(found)))


@app.command("simulate")
def simulate(
    board: Annotated[str, typer.Argument(help="A board's name; 'list' shows them.")],
    controller: Annotated[str, typer.Option(help="Names with commas.")] = _NAMES,
    jobs: JobsOption = 40,
    queue: QueueOption = False,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Serve published lengths and pauses on a simulated board: energy and missed goals.

    Beside them is the optimum of whoever knows the future. Every joule here is modelled.

    Example: floe power simulate odroid-xu3 --controller learned,performance --jobs 20
    """
    from floe.cli.power_simulate import board_lines, board_rows, comparison, comparison_lines

    if board == "list":
        print(json.dumps(board_rows()) if as_json else "\n".join(board_lines()))
        return
    names = [name.strip() for name in controller.split(",")]
    found = comparison(board, names, n_jobs=jobs, queue=queue, seed=seed)
    print(json.dumps(found) if as_json else "\n".join(comparison_lines(found)))


@app.command("train")
def train(
    board: Annotated[
        list[str] | None, typer.Option("--board", help="Boards to train on; default: three.")
    ] = None,
    generations: Annotated[int, typer.Option(min=1, help="Rounds of the search.")] = 40,
    jobs: JobsOption = 12,
    seed: SeedOption = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: where the server looks.")
    ] = None,
) -> None:
    """Train the learned controller's policy on simulated boards; the server then uses it.

    Example: floe power train --board odroid-xu3 --generations 5
    """
    from floe.cli.power_run import writable
    from floe.cli.power_simulate import train_policy
    from floe.core.config import home
    from floe.power.build import own_policy
    from floe.power.controllers.policy import save

    target = writable(output or own_policy(home()))
    policy, judged = train_policy(board, generations=generations, n_jobs=jobs, seed=seed)
    save(policy, target)
    say(
        f"wrote {target}: {policy.n_parameters} parameters; on held-out requests energy "
        f"{judged.energy:.3f} of the performance governor's (modelled), missed goals beyond its "
        f"own {judged.excess:.4f}"
    )


@app.command("run", context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    clock: Annotated[
        list[str] | None, typer.Option("--clock", help="A clock to hold, such as gpu=612 (MHz).")
    ] = None,
    controller: Annotated[
        str, typer.Option(help="performance or powersave: every clock at its highest or lowest.")
    ] = "",
    knobs: Annotated[str, typer.Option(help="Which clocks: auto, cpufreq, devfreq, ...")] = "auto",
    meter: Annotated[str, typer.Option(help="What measures: auto, rapl, hwmon, ...")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the figures as JSON.")
    ] = None,
    root: RootOption = _ROOT,
) -> None:
    """Run a command with clocks held, and say what it cost; the clocks are put back after it.

    Example: floe power run --clock gpu=612 -- floe bench decode
    """
    from floe.cli.power_run import clocks_for, cost_line, run_held, writable
    from floe.core.config import home
    from floe.core.errors import BadRequest
    from floe.power.build import POWER
    from floe.power.knobs.probe import open_knobs

    if clock and controller:
        raise BadRequest("give --clock or --controller, not both", param="controller")
    if command[0].startswith("-"):
        raise BadRequest(
            f"no such option: {command[0]}; see floe power run --help", param="command"
        )
    if output is not None:
        writable(output)
    held = open_knobs(knobs, root=root)
    wanted = clocks_for(held, clock or (), controller)
    found = run_held(
        command, knobs=held, clocks=wanted, meter_name=meter, folder=home() / POWER, root=root
    )
    say(cost_line(found))
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(int(found["exit_code"]))


@app.command("report")
def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")],
    board: Annotated[str, typer.Option(help="A board's name.")] = "orin-nano-super",
    controller: Annotated[str, typer.Option(help="Names with commas.")] = "performance,learned",
    jobs: JobsOption = 12,
    queue: QueueOption = False,
    seed: SeedOption = 1,
) -> None:
    """Write a page: clocks, power, temperature, deadlines over time, latency against energy.

    Example: floe power report --board odroid-xu3 -o power.html
    """
    from floe.cli.power_run import writable
    from floe.cli.power_simulate import report_page
    from floe.core.files import atomic_write

    names = [name.strip() for name in controller.split(",")]
    target = writable(output)
    page = report_page(board, names, n_jobs=jobs, queue=queue, seed=seed)
    with atomic_write(target) as file:
        file.write(page.encode())
    say(f"wrote {output}")


@app.command("reset")
def reset(
    unlock: Annotated[
        bool, typer.Option("--unlock", help="Also unlock NVIDIA clocks that no lease tells of.")
    ] = False,
    as_json: JsonOption = False,
    root: RootOption = _ROOT,
) -> None:
    """Put clocks back that a killed Floe left behind.

    Example: floe power reset
    """
    from floe.core.config import home
    from floe.core.errors import KnobFailed
    from floe.power.build import POWER
    from floe.power.hold import LEASE, repair
    from floe.power.knobs.many import ManyKnobs
    from floe.power.knobs.probe import all_knobs

    found = all_knobs(root)
    done: Any = repair(ManyKnobs(parts=list(found.values())), folder=home() / POWER)
    faults = [*done.faults]
    if unlock and found["nvml"].domains:
        faults += found["nvml"].put_back(found["nvml"].save())
    print(json.dumps({**asdict(done), "faults": faults}) if as_json else done.state)
    if faults:
        lease = home() / POWER / LEASE
        kept = f"; {lease} keeps them: remove it to give them up" if lease.exists() else ""
        raise KnobFailed(f"not put back: {'; '.join(faults)}{kept}")
