"""`floe explain`: what would happen to a text, and why; nothing is generated or sent."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config


def explain(
    text: Annotated[str, typer.Argument(help="The prompt to explain.")],
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print verdict, private spans, adapter shares and whether the cloud would be asked.

    What the router learned here counts; what a server has in memory does not.

    Example: floe explain "My IBAN is DE89 3704 0044 0532 0130 00"
    """
    from floe.assemble import open_embedding, open_engine, open_gate, open_router, open_store
    from floe.core.config import home
    from floe.core.request import Request
    from floe.privacy.explain import explain as findings_of

    settings, folder = read_config(config, model=model), home()
    request = Request(id="explain", prompt=text)
    gate = open_gate(settings, home=folder)
    verdict = gate.inspect(request.texts())
    with progress_bar(quiet=as_json) as progress:
        engine = open_engine(settings.model, home=folder, progress=progress)
        try:
            embedding = open_embedding(home=folder, progress=progress)
            store = open_store(settings, engine, home=folder)
            route = open_router(settings, engine, store, embedding, home=folder).choose(request)
        finally:
            engine.close()
    asked = verdict.action != "local" and settings.cloud.kind != "none"
    data = {
        "verdict": verdict.action,
        "reason": verdict.reason,
        "detectors": list(gate.detector_names),
        "findings": [asdict(f) for f in findings_of(verdict, request.texts())],
        "route": {"how": route.how, "reason": route.reason},
        "adapters": [{"id": s.name, "weight": s.weight} for s in route.shares],
        "scores": dict(route.scores),
        "cloud": settings.cloud.url if asked else None,
        "cloud_reason": _cloud_reason(verdict.action, settings.cloud.kind),
    }
    print(json.dumps(data)) if as_json else _print(data)


def _cloud_reason(action: str, kind: str) -> str:
    if action == "local":
        return "the text must not leave the device"
    if kind == "none":
        return "no cloud is configured"
    how = " with placeholders for what was found" if action == "mask" else ""
    return f"the text may leave the device{how}"


def _print(data: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    colour = {"allow": "green", "mask": "yellow"}.get(data["verdict"], "red")
    console.print(f"verdict   [{colour}]{data['verdict']}[/]  ", end="")
    console.print(data["reason"], markup=False)
    console.print(f"detectors {', '.join(data['detectors'])}", markup=False)
    if data["findings"]:
        table = Table("entity", "text", "where", "score", "recogniser")
        for f in data["findings"]:
            place = f"{f['field']} {f['start']}-{f['end']}"
            table.add_row(f["entity"], f["text"], place, f"{f['score']:.2f}", f["recogniser"])
        console.print(table)
    shares = ", ".join(f"{a['id']} {a['weight']:.2f}" for a in data["adapters"]) or "plain base"
    console.print(f"adapters  {shares}  ({data['route']['reason']})", markup=False)
    scores = ", ".join(f"{name} {share:.2f}" for name, share in data["scores"].items())
    console.print(f"scores    {scores or 'none'}", markup=False)
    console.print(f"cloud     {data['cloud'] or 'not asked'}: {data['cloud_reason']}", markup=False)
