"""`floe privacy explain` and `floe privacy policy`: what the gate would do, and by which rules."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.chat import visible
from floe.cli.common import ConfigOption, JsonOption, read_config
from floe.cli.privacy_scan import TenantOption, tell_unknown

if TYPE_CHECKING:
    from floe.core.request import Request
    from floe.core.verdict import Verdict


def explain(
    text: Annotated[str, typer.Argument(help="A text, or - for standard input.")],
    config: ConfigOption = None,
    tenant: TenantOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Print the verdict on a text, why, and the very text that would be sent to the cloud.

    For what else becomes of a prompt (adapters, cloud) there is: floe explain

    Example: floe privacy explain "I am Ada King, ada@example.org"
    """
    from floe.assemble import open_gate
    from floe.core.config import home
    from floe.core.request import Request
    from floe.privacy.explain import explain as findings_of

    request = Request(id="explain", prompt=sys.stdin.read() if text == "-" else text)
    settings = read_config(config)
    tell_unknown(settings, tenant)
    gate = open_gate(settings, home=home())
    policy = gate.policy(tenant)
    verdict = gate.inspect(request.texts(), tenant=tenant)
    rows = [
        {**asdict(f), "action": policy.action(f.entity, f.score)}
        for f in findings_of(verdict, request.texts())
    ]
    sent, placeholders = _outgoing(request, verdict)
    data = {
        "verdict": verdict.action,
        "reason": verdict.reason,
        "tenant": tenant,
        "detectors": list(gate.detector_names),
        "findings": rows,
        "sent": sent,
        "placeholders": placeholders,
    }
    print(json.dumps(data, ensure_ascii=False)) if as_json else _print(data)


def policy(
    config: ConfigOption = None, tenant: TenantOption = "default", as_json: JsonOption = False
) -> None:
    """Print what becomes of a finding of each entity, and how sure it must be.

    Example: floe privacy policy --tenant ward
    """
    from floe.assemble import open_gate
    from floe.core.config import home
    from floe.privacy.policy import ENTITIES

    settings = read_config(config)
    tell_unknown(settings, tenant)
    found = open_gate(settings, home=home()).policy(tenant)
    rows = {
        entity: {"action": found.treatment(entity), "least_score": found.least_score(entity)}
        for entity in sorted(ENTITIES)
    }
    if as_json:
        print(json.dumps(rows))
        return
    for entity, row in rows.items():
        print(f"{entity:<28} {row['action']:<6} from {row['least_score']:.2f}")


def _outgoing(request: Request, verdict: Verdict) -> tuple[str | None, dict[str, str]]:
    """The prompt as it may leave, and what its placeholders stand for."""
    from floe.privacy.masking import mask_request

    if verdict.action == "mask":
        masked, values = mask_request(request, verdict)
        return masked.prompt, values.placeholders
    return (request.prompt if verdict.may_leave else None), {}


def _print(data: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    colour = {"allow": "green", "mask": "yellow"}.get(data["verdict"], "red")
    console.print(f"verdict   [{colour}]{data['verdict']}[/]  ", end="")
    console.print(data["reason"], markup=False)
    console.print(f"detectors {', '.join(data['detectors'])}", markup=False)
    if data["findings"]:
        table = Table("entity", "text", "where", "score", "recogniser", "action")
        for f in data["findings"]:
            place = f"{f['start']}-{f['end']}"
            score = f"{f['score']:.2f}"
            said = visible(f["text"]).replace("[", r"\[")
            table.add_row(f["entity"], said, place, score, f["recogniser"], f["action"])
        console.print(table)
    sent = "nothing" if data["sent"] is None else visible(data["sent"])
    console.print(f"sent      {sent}", markup=False)
    for placeholder, value in data["placeholders"].items():
        console.print(f"          {placeholder} stands for {visible(value)}", markup=False)
