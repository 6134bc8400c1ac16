"""`floe privacy`: what left the device, and whether the record is whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from floe.cli.common import JsonOption

app = typer.Typer(help="The egress ledger: what left the device, when and why.")


@app.callback()
def _root() -> None:
    """Commands about what left the device."""


@app.command("ledger")
def ledger(
    last: Annotated[int, typer.Option(help="Show the last N entries.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show what was sent, when, where to and why, and check the hash chain.

    Example: floe privacy ledger --last 5
    """
    from floe.assemble import LEDGER
    from floe.core.config import home
    from floe.privacy.ledger import EgressLedger

    path = home() / LEDGER
    if not path.is_file():
        print(json.dumps({"entries": [], "sound": True}) if as_json else "nothing left this device")
        return
    book = EgressLedger(path=path)
    report, entries = book.verify(), book.read()[-last:]
    book.close()
    if as_json:
        shown = [asdict(e) for e in entries]
        print(json.dumps({"entries": shown, "sound": report.sound, "problem": report.problem}))
    else:
        for e in entries:
            print(f"{e.time}  {e.bytes:>7} bytes  {e.destination}  {e.reason}  {e.request_id}")
        state = "whole" if report.sound else f"broken at line {report.broken_line}"
        print(f"{report.entries} entries in {path}; the chain is {state} {report.problem}".rstrip())
    if not report.sound:
        raise typer.Exit(1)
