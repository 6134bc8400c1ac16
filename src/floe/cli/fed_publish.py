"""`floe fed export | publish | versions | rollback | revoke | keys`: learned adapters, signed."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from floe.cli.adapters import opened
from floe.cli.common import ConfigOption, JsonOption, ModelOption, read_config, say

if TYPE_CHECKING:
    from floe.adapters.signature import SigningKey
    from floe.adapters.versions import Claims
    from floe.core.config import Config

NameArgument = Annotated[str, typer.Argument(help="The adapter's name.")]
KeyOption = Annotated[
    Path | None, typer.Option("--key", help="Private key; default: FLOE_HOME/trust/publish.key.")
]

keys = typer.Typer(
    help="This device's key for signing adapters.\n\nExample: floe fed keys new",
    no_args_is_help=True,
)


@keys.command("new")
def new(key: KeyOption = None) -> None:
    """Make a key to sign adapters with, and print its public half.

    Give the public half to those who shall take your adapters: they name it in
    adapters.trusted_keys. The private half stays here, in a file that only you can read.

    Example: floe fed keys new
    """
    from floe.adapters.signature import new_key

    path = key or _key_path()
    print(new_key(path).public)
    say(f"floe: the private key is {path}; keep a copy in a safe place")


@keys.command("show")
def show(key: KeyOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """The public half of this device's key, and the keys it trusts besides.

    Example: floe fed keys show
    """
    from floe.adapters.signature import public_path, read_public

    settings = read_config(config).adapters
    path = public_path(key or _key_path())
    own = read_public(str(path)) if path.is_file() else ""
    trusted = [read_public(k) for k in settings.trusted_keys]
    if as_json:
        print(json.dumps({"own": own, "trusted": trusted, "signatures": settings.signatures}))
        return
    print(f"own      {own or 'none; make one with: floe fed keys new'}")
    for one in trusted:
        print(f"trusted  {one}")
    print(f"unsigned adapters: adapters.signatures is {settings.signatures}; those that come "
          "with Floe count as signed")  # fmt: skip


def export(
    out: Annotated[Path, typer.Argument(help="Folder to write a PEFT folder a cluster to.")],
    name: Annotated[str | None, typer.Option("--name", help="Default: federated.name.")] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what a federation has learned so far: a PEFT folder for each cluster.

    A cluster whose members are worse off with it is left out, and said so.

    Example: floe fed export ./learned
    """
    from floe.assemble.exported import export as write
    from floe.core.config import home

    settings = read_config(config, model=model)
    fed = settings.federated
    fed = fed if name is None else dataclasses.replace(fed, name=name)
    folders = write(fed, settings.model.name, out, home=home())
    if as_json:
        told = {"folders": {c: str(f) for c, f in folders.items() if isinstance(f, Path)},
                "left_out": {c: f for c, f in folders.items() if isinstance(f, str)}}  # fmt: skip
        print(json.dumps(told))
        return
    for cluster, folder in folders.items():
        print(f"{cluster}: {folder if isinstance(folder, Path) else f'left out: {folder}'}")


def publish(
    folder: Annotated[Path, typer.Argument(help="A PEFT folder, as `floe fed train` writes it.")],
    name: Annotated[str | None, typer.Option(help="Its name; default: the folder's.")] = None,
    description: Annotated[str, typer.Option(help="One line for the listing.")] = "",
    prompts: Annotated[
        Path | None, typer.Option(help="Public prompts, one a line: where it is routed to.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What its training spent; default: as its card says.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of that epsilon.")] = None,
    key: KeyOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign an adapter and put it into the store as the next version of its name.

    A running server answers with it from its next request on. The signature is laid into the
    folder, too: others check and take it with `floe adapters add`.

    Example: floe fed publish ./medicine --prompts public.txt
    """
    from floe.adapters.versions import publish as publish_signed

    settings = read_config(config, model=model)
    signer = _key(key, settings)
    if prompts is not None:
        _lay_centroid(folder, prompts)
    claims = _claims(folder, epsilon=epsilon, delta=delta)
    with opened(config, model, quiet=as_json) as (engine, store):
        stored = publish_signed(
            store, folder, signer, name=name, description=description, claims=claims
        )
        probe = engine.load_adapter(stored.gguf, key=stored.manifest.digest)
        engine.unload_adapter(probe)
        record = store.record(stored)
    assert record.seal is not None  # it was just signed
    statement = record.seal.statement
    if as_json:
        print(json.dumps({**dataclasses.asdict(statement), "public_key": signer.public}))
        return
    routed = "routed" if stored.manifest.centroid else "by name only: give it --prompts"
    print(
        f"published {statement.name} version {statement.version}: rank {stored.manifest.rank}, "
        f"{statement.digest[:12]}, {routed}"
    )


def versions(
    name: NameArgument,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every signed version of an adapter: what it was made of, who signed it.

    Example: floe fed versions medicine
    """
    from floe.adapters.versions import chain
    from floe.core.errors import NotFound

    with opened(config, model, quiet=as_json) as (_, store):
        found = chain(store, name)
        revoked = {v.statement.digest: store.trust.revocations.reason(
            digest=v.statement.digest, key=v.public_key) for v in found}  # fmt: skip
    if not found:
        raise NotFound(f"{name!r} has no signed version. Make one with: floe fed publish")
    rows = [{**dataclasses.asdict(v), "revoked": revoked[v.statement.digest]} for v in found]
    if as_json:
        print(json.dumps(rows))
        return
    for v in found:
        s = v.statement
        state = "revoked" if revoked[s.digest] else "now" if v.is_current else ""
        state = state or ("kept" if v.is_here else "gone")
        spent = "no epsilon" if s.epsilon is None else f"epsilon {s.epsilon:.3g}"
        counts = s.evaluation
        judged = f"{counts['worse']} of {counts['worse'] + counts['not_worse']} worse" if (
            {"worse", "not_worse"} <= counts.keys()) else "not judged"  # fmt: skip
        restored = f" (version {s.restores} again)" if s.restores else ""
        print(
            f"{s.version:>4}  {state:<7}  {s.digest[:12]}  {s.created_at}  round {s.round_number}  "
            f"{spent}  {judged}  {v.public_key[:20]}{restored}"
        )


def rollback(
    name: NameArgument,
    to: Annotated[int | None, typer.Option(help="Version; default: the one before.")] = None,
    key: KeyOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Publish an earlier version again, as a new one, so that devices take it.

    A running server answers with it from its next request on.

    Example: floe fed rollback medicine
    """
    from floe.adapters.versions import rollback as go_back

    signer = _key(key, read_config(config, model=model))
    with opened(config, model) as (_, store):
        stored = go_back(store, name, signer, to=to)
        record = store.record(stored)
    assert record.seal is not None  # it was just signed
    statement = record.seal.statement
    print(f"{name} is version {statement.version} now, with what was in {statement.restores}")


def revoke(
    what: Annotated[str, typer.Argument(help="A name in the store, a digest, or a public key.")],
    reason: Annotated[str, typer.Option(help="Why; it is shown to those who use it.")] = "",
    version: Annotated[
        int | None, typer.Option(help="With a name: this version, not the present one.")
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Refuse an adapter, or all that a key signed, from now on and for good.

    A running server leases it no more; answers under way end. `floe adapters publish` gives the
    list out, signed, to the devices that take adapters from there.

    Example: floe fed revoke medicine --reason "learned from a wrong data set"
    """
    from floe.adapters.revocations import revocation
    from floe.assemble import open_trust
    from floe.core.config import home

    kind: Literal["digest", "key"] = "key" if what.startswith("ed25519:") else "digest"
    is_name = kind == "digest" and not _is_digest(what)
    value = _digest_of(what, version, config, model) if is_name else what
    entry = revocation(kind, value, reason=reason, at=datetime.now(UTC).isoformat("T", "seconds"))
    trust = open_trust(read_config(config, model=model), home=home())
    is_new = trust.revocations.add([entry])
    print(f"revoked {kind} {entry.value[:20]}" if is_new else "it was revoked before")


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _digest_of(name: str, version: int | None, config: Path | None, model: str | None) -> str:
    from floe.core.errors import NotFound

    with opened(config, model) as (_, store):
        record = store.current(name) if version is None else store.history.at(name, version)
        known = [entry.name for entry in store.entries()]
    if record is None:
        wanted = f"adapter {name!r}" if version is None else f"version {version} of {name!r}"
        raise NotFound(f"there is no {wanted} here; there are: {', '.join(known) or 'none'}")
    return record.manifest.digest


def _key_path() -> Path:
    from floe.adapters.trust import KEY
    from floe.assemble import TRUST
    from floe.core.config import home

    return home() / TRUST / KEY


def _key(key: Path | None, config: Config) -> SigningKey:
    """The key to sign with; one that this device does not trust itself is refused here."""
    from floe.adapters.signature import load_key
    from floe.assemble import open_trust
    from floe.core.config import home
    from floe.core.errors import Untrusted

    signer = load_key(key or _key_path())
    trust = open_trust(config, home=home())
    if not trust.trusts(signer.public):
        raise Untrusted(
            f"this device does not trust {signer.public} itself: name it in adapters.trusted_keys"
        )
    return signer


def _lay_centroid(folder: Path, prompts: Path) -> None:
    from floe.cli.adapters import centroid_from
    from floe.core.errors import BadAdapter
    from floe.core.files import atomic_write

    if not folder.is_dir():
        raise BadAdapter(f"{folder} is not a PEFT folder: only one takes --prompts along")
    centroid = centroid_from(prompts)
    note = {"encoder_digest": centroid.encoder_digest, "vector": list(centroid.vector)}
    with atomic_write(folder / "centroid.json") as file:
        file.write(json.dumps(note).encode())


def _claims(folder: Path, *, epsilon: float | None, delta: float | None) -> Claims:
    """What the folder's card says, and what was said here in place of it."""
    from floe.adapters.versions import claims_of
    from floe.core.errors import BadRequest

    path, card = folder / "card.json", {}
    if path.is_file():
        try:
            read: Any = json.loads(path.read_bytes())
        except ValueError as error:
            raise BadRequest(f"{path} is not JSON") from error
        card = read if isinstance(read, dict) else {}
    claims = claims_of(card)
    if epsilon is not None:
        claims = dataclasses.replace(claims, epsilon=epsilon, delta=delta)
    if claims.epsilon is not None and claims.delta is None:
        raise BadRequest("an epsilon means nothing without its delta: give --delta", param="delta")
    return claims
