"""`floe bench`: the one door for figures."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from floe.cli.common import say


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; 'list' shows them.")],
    full: Annotated[bool, typer.Option("--full", help="The long form.")] = False,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="The parts, of latency; it shows them anyway.")
    ] = False,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Write a flat JSON object to FILE or - (stdout).")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page into this folder.")
    ] = None,
) -> None:
    """Measure on this machine, side by side with what one would use instead.

    Example: floe bench decode --json -
    """
    from floe.core.errors import BadRequest
    from floe.evaluation.bench import BENCHMARKS, run_benchmark
    from floe.evaluation.report import print_figures, write_page

    if name == "list":
        for known, benchmark in BENCHMARKS.items():
            print(f"{known:<12} {benchmark.summary}")
        return
    if breakdown and name != "latency":
        raise BadRequest("--breakdown is for: floe bench latency", param="breakdown")
    figures = run_benchmark(name, full=full, say=say)
    if name == "fusion":
        say("every fault at every token, for every client")
        figures |= _faults()
    if json_to == "-":
        print(json.dumps(figures))
    elif json_to is not None:
        Path(json_to).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    else:
        print_figures(figures)
    if report is not None:
        say(f"wrote {write_page(name, figures, report)}")


def _faults() -> dict[str, Any]:
    """Counts of `floe.testing.takeovers`, which a benchmark cannot reach itself."""
    from floe.testing.takeovers import takeovers

    logging.getLogger("floe").setLevel(logging.CRITICAL)  # each fault would be reported
    found = takeovers()
    return {
        "takeovers": found.continued / found.cases,
        "takeovers_cases": found.cases,
        "takeovers_repeats": found.repeats,
        "takeovers_gaps": found.gaps,
    }
