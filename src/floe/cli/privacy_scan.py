"""`floe privacy scan`: what is private in a file, line by line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from floe.cli.chat import visible
from floe.cli.common import ConfigOption, read_config, say
from floe.cli.privacy_input import bar, opened, texts

if TYPE_CHECKING:
    from floe.core.config import Config
    from floe.privacy.scan import Place

FOUND = 1
TenantOption = Annotated[str, typer.Option("--tenant", help="Judge as for this tenant.")]
ShowOption = Annotated[bool, typer.Option("--show", help="Print the private text itself.")]


def tell_unknown(settings: Config, tenant: str) -> None:
    """Say it when nobody configured the tenant: it may be misspelt."""
    from floe.core.config_rules import DEFAULT

    if tenant != DEFAULT and tenant not in settings.tenants:
        say(f'no tenant "{tenant}" is configured: judged by the strictest policy')


def scan(
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.")],
    config: ConfigOption = None,
    tenant: TenantOption = "default",
    show: ShowOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Print FILE:LINE:COLUMN, entity, score, recogniser and action for what is private.

    The text itself is printed only with --show. Exit code 0: nothing private; 1: something is;
    another: the file could not be read. Files of any size are read in pieces.

    Example: floe privacy scan letter.txt
    """
    from floe.assemble import open_gate
    from floe.core.config import home
    from floe.privacy.scan import scan as places_in

    settings = read_config(config)
    tell_unknown(settings, tenant)
    gate = open_gate(settings, home=home())
    counts: Counter[str] = Counter()
    with opened(file) as (source, size), bar(file, size) as shown:
        for place in places_in(texts(source, shown), gate.spans, gate.policy(tenant)):
            counts[place.action] += 1
            print(_as_json(file, place, show) if as_json else _as_line(file, place, show))
    say(_summary(counts))
    if counts["local"] or counts["mask"]:
        raise typer.Exit(FOUND)


def _as_json(file: str, place: Place, show: bool) -> str:
    row = {"file": file, **asdict(place)}
    if not show:
        del row["text"]
    return json.dumps(row, ensure_ascii=False)


def _as_line(file: str, place: Place, show: bool) -> str:
    where = f"{'stdin' if file == '-' else file}:{place.line}:{place.column}"
    said = f"  {visible(place.text)}" if show else ""
    facts = f"{place.entity} {place.score:.2f} {place.recogniser} {place.action}"
    return f"{where}: {facts}{said}"


def _summary(counts: Counter[str]) -> str:
    total = counts["local"] + counts["mask"]
    if not total:
        return "nothing private found" + (f" ({counts['allow']} allowed)" * bool(counts["allow"]))
    parts = [f"{n} {action}" for action, n in sorted(counts.items())]
    return f"{total} private {'place' if total == 1 else 'places'} ({', '.join(parts)})"
