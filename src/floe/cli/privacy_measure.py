"""`floe privacy test`: how well the gate does on a file that its user has labelled."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, read_config, say
from floe.cli.privacy_input import bar, lines, opened, texts
from floe.cli.privacy_scan import TenantOption, tell_unknown

if TYPE_CHECKING:
    from floe.privacy.measure import Measured


def test(
    file: Annotated[str, typer.Argument(help="Labelled texts: JSON lines, Presidio's or TSV; -.")],
    config: ConfigOption = None,
    tenant: TenantOption = "default",
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Print [privacy.scores] that would do better.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print recall and precision by entity, what is mistaken for what, and the worst lines.

    A line is {"text": "...", "spans": [{"entity": "PERSON", "start": 0, "end": 3}]}, or {"text":
    "...", "private": true}, or a text, a tab and 1 or 0; a list as Presidio's generator writes it
    works too. Lines are named by number; their text is never printed.

    Example: floe privacy test labelled.jsonl --suggest
    """
    from floe.assemble import open_gate
    from floe.core.config import home
    from floe.core.errors import BadRequest
    from floe.privacy.labelled import read_labelled
    from floe.privacy.measure import Measure

    settings = read_config(config)
    tell_unknown(settings, tenant)
    gate = open_gate(settings, home=home())
    measure = Measure(policy=gate.policy(tenant))
    with opened(file) as (source, size), bar(file, size) as shown:
        for labelled in read_labelled(lines(texts(source, shown))):
            measure.add(labelled, gate.spans(labelled.text))
    measured = measure.result()
    if not measured.texts:
        raise BadRequest(f"there are no labelled texts in {file}", param="file")
    if as_json:
        print(json.dumps(_as_json(measured)))
    else:
        _print(measured)
        if suggest:
            _print_suggested(measured)
        elif measured.suggested:
            say("other scores would do better: add --suggest")


def _as_json(measured: Measured) -> dict[str, Any]:
    entities = {
        name: {**asdict(f), "recall": f.recall, "precision": f.precision}
        for name, f in measured.entities.items()
    }
    confusion = [
        {"labelled": a, "reported": b, "count": n} for (a, b), n in measured.confusion.items()
    ]
    return {
        "texts": measured.texts,
        "private": measured.private,
        "private_recall": measured.private_recall,
        "private_precision": measured.private_precision,
        "entities": entities,
        "confusion": confusion,
        "worst": [{"line": line, "missed_chars": n} for line, n in measured.worst],
        "suggested_scores": dict(measured.suggested),
    }


def _print(measured: Measured) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=100)
    console.print(
        f"{measured.texts} texts, {measured.private} private: recall "
        f"{_share(measured.private_recall)}, precision {_share(measured.private_precision)}"
    )
    if measured.entities:
        table = Table("entity", "labelled", "found", "whole", "recall", "reported", "precision")
        for name, f in measured.entities.items():
            counts = (str(f.gold), str(f.found), str(f.covered), _share(f.recall))
            table.add_row(name, *counts, str(f.reported), _share(f.precision))
        console.print(table)
    mistaken = sorted(
        ((n, a, b) for (a, b), n in measured.confusion.items() if a != b), reverse=True
    )
    for n, a, b in mistaken[:20]:
        console.print(f"{n:>6} x {a} reported as {b}", markup=False)
    if measured.worst:
        places = ", ".join(f"{line} ({n} characters)" for line, n in measured.worst)
        console.print(f"most missed in lines {places}", markup=False)


def _print_suggested(measured: Measured) -> None:
    if not measured.suggested:
        say("no other scores would do better on this file")
        return
    print("[privacy.scores]")
    for entity, score in measured.suggested.items():
        print(f"{entity} = {score:.2f}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
