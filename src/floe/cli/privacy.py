"""`floe privacy`: what is private, what would be sent, and what was sent."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.cli import privacy_explain, privacy_measure, privacy_scan
from floe.cli.common import JsonOption

if TYPE_CHECKING:
    from floe.privacy.ledger_chain import Egress, LedgerReport

app = typer.Typer(help="What is private, what would leave the device, and what has left it.")


@app.callback()
def _root() -> None:
    """Commands about what is private and what left the device."""


app.command("scan")(privacy_scan.scan)
app.command("test")(privacy_measure.test)
app.command("explain")(privacy_explain.explain)
app.command("policy")(privacy_explain.policy)


@app.command("ledger")
def ledger(
    last: Annotated[int, typer.Option(min=0, help="Show the last N entries.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show what was sent, when, where to and why, and check the hash chain.

    The chain cannot show that the newest lines were cut off.

    Example: floe privacy ledger --last 5
    """
    from floe.assemble import LEDGER
    from floe.core.config import home
    from floe.privacy.ledger_chain import inspect_ledger

    path = home() / LEDGER
    if _is_missing(path):
        nothing = {"entries": [], "sound": True, "path": str(path)}
        said = f"no ledger at {path}: nothing was recorded as sent"
        print(json.dumps(nothing) if as_json else said)
        return
    report, shown = inspect_ledger(path, last=last)
    if as_json:
        print(_as_json(report, shown, path))
    else:
        for e in shown:
            print(f"{e.time}  {e.bytes:>7} bytes  {e.destination}  {e.reason}  {e.request_id}")
        print(_summary(report, path))
    if not report.sound:
        raise typer.Exit(1)


def _is_missing(path: Path) -> bool:
    """Whether there is nothing; what cannot be looked at is there, and reading it says why not."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _as_json(report: LedgerReport, shown: list[Egress], path: Path) -> str:
    return json.dumps(
        {
            "entries": [asdict(e) for e in shown],
            "sound": report.sound,
            "path": str(path),
            "problem": report.problem,
            "broken_line": report.broken_line,
            "broken_file": report.broken_file,
            "torn_end_bytes": report.torn_end_bytes,
            "total_entries": report.entries,
            "last_hash": report.last_hash,
        }
    )


def _summary(report: LedgerReport, path: Path) -> str:
    n_entries, state = report.entries, "whole"
    if not report.sound:
        where = "" if report.broken_file == path.name else f" of {report.broken_file}"
        state = f"broken at line {report.broken_line}{where}: {report.problem}"
    text = f"{n_entries} {'entry' if n_entries == 1 else 'entries'} in {path}; the chain is {state}"
    if report.torn_end_bytes:
        text += f"; the last line is torn ({report.torn_end_bytes} bytes, cut short while written)"
    return text
