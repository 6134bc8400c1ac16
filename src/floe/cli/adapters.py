"""`floe adapters`: the store of LoRA adapters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say

if TYPE_CHECKING:
    from floe.adapters.store import AdapterStore
    from floe.core.adapter import StoredAdapter
    from floe.engine.llamacpp import LlamaCppEngine

app = typer.Typer(
    help="List, add, remove, restore, publish, inspect and verify adapters.", no_args_is_help=True
)
NameArgument = Annotated[str, typer.Argument(help="The adapter's name.")]


@contextmanager
def opened(
    config: Path | None, model: str | None, *, quiet: bool = False
) -> Iterator[tuple[LlamaCppEngine, AdapterStore]]:
    """The engine of the configured model and its store, for the time of the block."""
    from floe.assemble import open_engine, open_store
    from floe.core.config import home

    settings = read_config(config, model=model)
    with progress_bar(quiet=quiet) as progress:
        engine = open_engine(settings.model, home=home(), progress=progress)
    try:
        yield engine, open_store(settings, engine, home=home())
    finally:
        engine.close()


@app.command("list")
def list_(
    config: ConfigOption = None, model: ModelOption = None, as_json: JsonOption = False
) -> None:
    """Every adapter of the store, broken ones with the reason.

    Example: floe adapters list
    """
    with opened(config, model, quiet=as_json) as (_, store):
        entries = store.entries()
    if as_json:
        print(json.dumps([_as_json(e) for e in entries]))
        return
    for e in entries:
        if e.stored is None:
            print(f"{e.name:<20} failed: {e.reason}")
        else:
            m = e.stored.manifest
            routed = "routed" if m.centroid else "by name only"
            size = f"rank {m.rank}, {m.file_bytes / 1e6:.1f} MB"
            print(f"{m.name:<20} {size:<18} {routed:<13} {m.digest[:12]}  {m.description}")
    if not entries:
        say("no adapters yet; add one with: floe adapters add FOLDER")


def _as_json(entry: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"name": entry.name, "state": entry.state, "reason": entry.reason}
    if entry.stored is not None:
        data |= dataclasses.asdict(entry.stored.manifest)
        data["centroid"] = entry.stored.manifest.centroid is not None
    return data


@app.command("add")
def add(
    source: Annotated[Path, typer.Argument(help="A PEFT folder or a GGUF LoRA.")],
    name: Annotated[str | None, typer.Option(help="Its name; default: the folder's.")] = None,
    description: Annotated[str, typer.Option(help="One line for the listing.")] = "",
    prompts: Annotated[
        Path | None, typer.Option(help="Text file, one typical prompt a line: lets it be routed.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take over a used name.")] = False,
    any_base: Annotated[
        bool, typer.Option("--any-base", help="Accept another declared base of the same shape.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Check an adapter and put it into the store, whole or not at all.

    Example: floe adapters add ./my-lora --name letters --prompts letters.txt
    """
    with opened(config, model) as (engine, store):
        stored = store.add(
            source, name=name, description=description, replace=replace, any_base=any_base
        )
        probe = engine.load_adapter(stored.gguf, key=stored.manifest.digest)
        engine.unload_adapter(probe)
        if prompts is not None:
            store.set_centroid(stored.manifest.name, centroid_from(prompts))
    _warn_of_size(stored, read_config(config, model=model).adapters.budget_bytes)
    m = stored.manifest
    print(f"added {m.name}: rank {m.rank}, {m.modules} modules, {m.digest[:12]}")


def _warn_of_size(stored: StoredAdapter, budget_bytes: int) -> None:
    needed, name = stored.manifest.file_bytes, stored.manifest.name
    if needed > budget_bytes:
        say(
            f"warning: {name} needs {needed} bytes in memory, adapters.budget_bytes is "
            f"{budget_bytes}: no request can use it until that setting is raised"
        )


@app.command("restore")
def restore(name: NameArgument, config: ConfigOption = None, model: ModelOption = None) -> None:
    """Put an adapter that comes with Floe back into the store, as it was shipped.

    Example: floe adapters restore maths
    """
    from floe.core.errors import NotFound

    folders = _shipped()
    if name not in folders:
        raise NotFound(
            f"no adapter {name!r} comes with Floe; these do: {', '.join(folders) or 'none'}",
            param="name",
        )
    with opened(config, model) as (_, store):
        stored = store.add(folders[name], replace=True)
    print(f"restored {name}: {stored.manifest.digest[:12]}")


def _shipped() -> dict[str, Path]:
    from floe.adapters.source import shipped

    return {folder.name: folder for folder in shipped()}


def centroid_from(prompts: Path) -> Any:
    """The middle of a file's prompts, one a line. Raises NotFound, BadRequest."""
    from floe.assemble import open_embedding
    from floe.core.config import home
    from floe.core.errors import NotFound
    from floe.routing.centroid import centroid_of

    if not prompts.is_file():
        raise NotFound(f"no file of prompts at {prompts}", param="prompts")
    lines = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    return centroid_of(lines, open_embedding(home=home()))


@app.command("rm")
def remove(name: NameArgument, config: ConfigOption = None, model: ModelOption = None) -> None:
    """Take an adapter out of the store.

    Example: floe adapters rm letters
    """
    with opened(config, model) as (_, store):
        store.remove(name)
    print(f"removed {name}")
    if name in _shipped():
        say(f"{name} comes with Floe; put it back with: floe adapters restore {name}")


@app.command("publish")
def publish(
    folder: Annotated[Path, typer.Argument(help="Where to write them; may be there already.")],
    ranks: Annotated[
        str | None, typer.Option(help="Offer larger ones cut to these ranks, too, as 4,8.")
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Write every adapter of the store to a folder that other devices can take them from.

    Serve the folder as it is, or copy it to a bucket or a web server; the others name it in
    adapters.remote (file://, s3:// or https://). With a key of your own (`floe fed keys new`) the
    list of what you revoked goes along, signed.

    Example: floe adapters publish /srv/adapters --ranks 4,8
    """
    from floe.adapters.remote_index import publish as write

    with opened(config, model) as (_, store):
        count = write(store, folder, ranks=_ranks(ranks), key=_own_key())
    print(f"published {count} adapters to {folder}")


def _ranks(text: str | None) -> list[int]:
    from floe.core.errors import BadRequest

    try:
        ranks = [int(part) for part in (text or "").split(",") if part.strip()]
    except ValueError as error:
        raise BadRequest("--ranks are numbers with commas, as 4,8", param="ranks") from error
    if min(ranks, default=1) < 1:
        raise BadRequest("--ranks must be 1 or more", param="ranks")
    return ranks


def _own_key() -> Any:
    """This device's key; None where it has none."""
    from floe.adapters.signature import load_key
    from floe.adapters.trust import KEY
    from floe.assemble import TRUST
    from floe.core.config import home

    path = home() / TRUST / KEY
    return load_key(path) if path.is_file() else None


@app.command("inspect")
def inspect(
    name: NameArgument,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Everything the store knows of one adapter.

    Example: floe adapters inspect maths
    """
    with opened(config, model, quiet=as_json) as (_, store):
        stored = store.get(name)
        seal = store.record(stored).seal
    data = dataclasses.asdict(stored.manifest)
    if data["centroid"] is not None:
        data["centroid"] = {"encoder_digest": data["centroid"]["encoder_digest"]}
    data["gguf"] = str(stored.gguf)
    if seal is not None:
        data |= {"version": seal.statement.version, "signed_by": seal.public_key}
    if as_json:
        print(json.dumps(data))
        return
    for key, value in data.items():
        print(f"{key:<14} {json.dumps(value) if isinstance(value, dict) else value}")


@app.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(help="One adapter; none = all.")] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the log-probabilities of each served adapter with a merged model, in F32.

    Example: floe adapters verify maths
    """
    from floe.adapters.verify import verify as compare
    from floe.assemble import run_f32
    from floe.core.config import home
    from floe.core.files import sha256_file

    with opened(config, model, quiet=as_json) as (engine, store):
        chosen = [store.get(name)] if name else list(store.list())
        folder = home() / "verify"
        folder.mkdir(parents=True, exist_ok=True)
        digest = engine.info.digest or sha256_file(engine.path)
        results = []
        for stored in chosen:
            lora = store.tensors(stored)
            result = compare(
                stored, lora, engine.path, run_f32, model_digest=digest, cache_folder=folder
            )
            results.append(result)
            if not as_json:
                mark = "ok  " if result.is_ok else "FAIL"
                print(
                    f"{mark} {result.name:<16} max difference {result.max_difference:.4f} "
                    f"(allowed {result.tolerance}), effect {result.effect:.3f}, "
                    f"{result.modules} modules {result.reason}".rstrip()
                )
    if as_json:
        print(json.dumps([dataclasses.asdict(r) for r in results]))
    if not all(r.is_ok for r in results):
        raise typer.Exit(5)
